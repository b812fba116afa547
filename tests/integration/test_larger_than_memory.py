"""Data several times larger than a real memory limit streams through, and the same data read whole is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.demo.data import CHUNK_ROWS, make_table
from penstock.memory import run_limited

LIMIT = 400_000_000
DATA = 4 * LIMIT

COUNT = """
import sys
import penstock as ps
kind, path = sys.argv[1:]
if kind == "images":
    ds = ps.read_images(path, size=(224, 224)).shuffle(seed=1).batch(32)
else:
    ds = getattr(ps, "read_" + kind)(path, label="label").shuffle(seed=1).batch(1024)
print("rows", sum(len(batch[1]) for batch in ds))
"""

WHOLE = """
import sys
import pyarrow.parquet as pq
print(pq.read_table(sys.argv[2]).to_pandas().shape)
"""


def run(script: str, kind: str, path: Path):
    return run_limited([sys.executable, "-c", script, kind, str(path)], LIMIT, capture=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("large")


@pytest.fixture(scope="module")
def parquet(folder):
    path, rows = folder / "table.parquet", 50_000
    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.standard_normal(rows).astype(np.float32) for i in range(40)}
    table = pa.table({**columns, "label": rng.integers(0, 2, rows)})
    with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(DATA // table.nbytes + 1):
            writer.write_table(table)
    return path


def test_parquet(parquet):
    outcome = run(COUNT, "parquet", parquet)
    assert not outcome.killed and outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == ["rows", str(pq.read_metadata(parquet).num_rows)]
    assert outcome.peak_nbytes < LIMIT


def test_the_same_file_read_whole_is_killed(parquet):
    assert run(WHOLE, "parquet", parquet).killed


def test_csv(folder):
    path = folder / "table.csv"
    rows = make_table(path, DATA, lambda n: None)
    outcome = run(COUNT, "csv", path)
    assert not outcome.killed and outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == ["rows", str(rows)]
    assert rows % CHUNK_ROWS == 0 and path.stat().st_size >= DATA
    path.unlink()


def test_images(folder):
    """Decoded they are four times the limit; the files themselves are one picture under many names."""
    count = DATA // (224 * 224 * 3) + 1
    (folder / "images" / "one").mkdir(parents=True)
    first = folder / "images" / "one" / "0.jpg"
    picture = np.random.default_rng(0).integers(0, 255, (224, 224, 3), dtype=np.uint8)
    assert cv2.imwrite(str(first), picture)
    for index in range(1, count):
        (folder / "images" / "one" / f"{index}.jpg").hardlink_to(first)
    outcome = run(COUNT, "images", folder / "images")
    assert not outcome.killed and outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == ["rows", str(count)]

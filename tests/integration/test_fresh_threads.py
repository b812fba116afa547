"""Many threads read with every kernel at once as the first thing that a fresh process does: nothing races."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

CHILD = """
import json, sys, threading
import penstock as ps

folder = sys.argv[1]
READERS = {
    "csv": lambda: ps.read_csv(folder + "/t.csv", label="y"),
    "json": lambda: ps.read_json(folder + "/t.jsonl", label="y"),
    "tfrecord": lambda: ps.read_tfrecords(folder + "/records/*.tfrecord", label="y"),
    "parquet": lambda: ps.read_parquet(folder + "/t.parquet", label="y"),
    "images": lambda: ps.read_images(folder + "/images", size=(16, 16)),
}
together, found = threading.Barrier(2 * len(READERS)), []

def read(name):
    together.wait()
    rows = sum(len(y) for _, y in READERS[name]().shuffle(seed=1).batch(16))
    found.append((name, rows))

threads = [threading.Thread(target=read, args=(name,)) for name in [*READERS] * 2]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(sorted(found)))
"""
ROWS = {"csv": 400, "json": 400, "tfrecord": 400, "parquet": 400, "images": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import cv2
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = tmp_path_factory.mktemp("fresh")
    rng = np.random.default_rng(1)
    columns = {"a": rng.normal(size=400), "b": rng.normal(size=400), "y": rng.integers(0, 9, 400)}
    lines = list(zip(*(column.tolist() for column in columns.values())))
    (made / "t.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in lines))
    (made / "t.jsonl").write_text("".join(json.dumps({"a": a, "b": b, "y": y}) + "\n" for a, b, y in lines))
    pq.write_table(pa.table(columns), made / "t.parquet")
    ps.read_parquet(str(made / "t.parquet")).write(str(made / "records"), format="tfrecord")
    for number in range(24):
        path = made / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
    return made


def check(folder: Path, times: int) -> None:
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == sorted([name, rows] for name, rows in ROWS.items() for _ in "ab")
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_every_kernel_starts_from_many_threads(folder: Path) -> None:
    check(folder, 3)


@pytest.mark.slow
def test_every_kernel_starts_from_many_threads_fifty_times(folder: Path) -> None:
    check(folder, 50)

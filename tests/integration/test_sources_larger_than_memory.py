"""Every source with data of several times a real memory limit: it streams through, shuffled, and stays below the limit.

A file of 1/8 of the data stands under eight names (hard links, or one URL many times): what is read is several times
the limit, what lies on the disk is not.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server
from s3_gate import gated

from penstock.memory import run_limited
from penstock.sources.tfrecord.write import encode_example, frame

LINKS = 8


class Scale(NamedTuple):
    """A limit, and how many times as much data there is."""

    limit: int
    times: int

    @property
    def nbytes(self) -> int:
        return self.limit * self.times


SMALL, CLIENT = Scale(250_000_000, 2), Scale(500_000_000, 2)
"""The usual run. A client of a database or of S3 takes 100 MB by itself."""

LARGE = pytest.param(Scale(1_000_000_000, 4), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])

scaled = pytest.mark.parametrize("scale", [SMALL, LARGE], ids=str)
scaled_client = pytest.mark.parametrize("scale", [CLIENT, LARGE], ids=str)

CHILD = """
import sys
import penstock as ps
kind, path = sys.argv[1:3]
if kind == "tfrecords":
    ds = ps.read_tfrecords(path, label="y")
elif kind == "hdf5":
    ds = ps.read_hdf5(path, x="x", y="y")
elif kind == "zarr":
    ds = ps.read_zarr(path, x="x", y="y")
elif kind == "json":
    ds = ps.read_json(path, columns=["t", "y"])
elif kind == "tar":
    ds = ps.read_webdataset(path, sample=("npy", "cls"))
elif kind == "sql":
    ds = ps.read_sql(path, sys.argv[3], partition_on="i", partitions=16)
elif kind == "s3":
    ds = ps.read_text([path] * int(sys.argv[3]))
rows = nbytes = 0
for batch in ds.shuffle(seed=1).batch(64):
    columns = list(batch.values()) if isinstance(batch, dict) else list(batch) if isinstance(batch, tuple) else [batch]
    rows += len(columns[0])
    nbytes += sum(c.nbytes if c.dtype != object else sum(map(len, c)) for c in columns)
print("read", rows, nbytes)
"""


def stream(scale: Scale, *arguments: Any) -> int:
    """Rows that a child under the limit saw."""
    limit = scale.limit
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    outcome = run_limited(
        [sys.executable, "-c", CHILD, *map(str, arguments)], limit, env=environment, capture=True, timeout_s=1500
    )
    assert outcome.returncode == 0 and not outcome.killed, outcome.stderr
    assert outcome.stdout is not None
    sys.stdout.write(f"{arguments[0]} under {limit / 1e6:.0f} MB: peak {outcome.peak_nbytes / 1e6:.0f} MB\n")
    assert outcome.peak_nbytes < limit
    _, rows, nbytes = outcome.stdout.split()
    assert int(nbytes) > 0.97 * scale.nbytes
    return int(rows)


def linked(folder: Path, first: Path) -> Path:
    for i in range(1, LINKS):
        (folder / f"{i}{first.suffix}").hardlink_to(first)
    return folder


def examples(nbytes: int) -> tuple[bytes, int]:
    """Records of 1,000 floats, as many as make so many bytes; how many there are."""
    x = np.random.default_rng(0).random((100, 1000), np.float32)
    piece = b"".join(frame(encode_example({"x": row, "y": i})) for i, row in enumerate(x))
    times = nbytes // 400_000 + 1
    return piece * times, 100 * times


@scaled
def test_tfrecord(tmp_path: Path, scale: Scale) -> None:
    data, rows = examples(scale.nbytes // LINKS)
    (tmp_path / "0.tfrecord").write_bytes(data)
    del data
    assert stream(scale, "tfrecords", linked(tmp_path, tmp_path / "0.tfrecord")) == rows * LINKS


@scaled
def test_hdf5(tmp_path: Path, scale: Scale) -> None:
    rows = scale.nbytes // LINKS // 40_000 + 1
    with h5py.File(tmp_path / "0.h5", "w") as file:
        values = file.create_dataset("x", (rows, 100, 100), "f4", chunks=(16, 100, 100), compression="gzip")
        values[:] = np.zeros((1, 100, 100), "f4")
        file["y"] = np.arange(rows)
    assert stream(scale, "hdf5", linked(tmp_path, tmp_path / "0.h5")) == rows * LINKS


@scaled
def test_zarr(tmp_path: Path, scale: Scale) -> None:
    """Chunks that were never written are the fill value: the array is large and the store is not."""
    import zarr

    rows = scale.nbytes // 40_000 + 1
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("x", shape=(rows, 100, 100), dtype="f4", chunks=(16, 100, 100))[:64] = 1
    group.create_array("y", shape=(rows,), dtype="i8", chunks=(10_000,))[:] = np.arange(rows)
    assert stream(scale, "zarr", tmp_path / "a.zarr") == rows


@scaled
def test_json(tmp_path: Path, scale: Scale) -> None:
    lines = [json.dumps({"t": "words and " * 40, "y": i, "n": {"k": [1, 2, 3]}}) for i in range(1000)]
    piece = ("\n".join(lines) + "\n").encode()
    times = scale.nbytes // LINKS // (1000 * 400) + 1
    with open(tmp_path / "0.jsonl", "wb") as file:
        for _ in range(times):
            file.write(piece)
    assert stream(scale, "json", linked(tmp_path, tmp_path / "0.jsonl")) == 1000 * times * LINKS


@scaled
def test_tar(tmp_path: Path, scale: Scale) -> None:
    rows, npy = scale.nbytes // LINKS // 40_000 + 1, io.BytesIO()
    np.save(npy, np.zeros((100, 100), np.float32))
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for i in range(rows):
            for name, data in ((f"{i}.npy", npy.getvalue()), (f"{i}.cls", b"%d" % i)):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    assert stream(scale, "tar", linked(tmp_path, tmp_path / "0.tar")) == rows * LINKS


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    if postgres_server.binaries() is None:
        pytest.skip("no PostgreSQL server is installed")
    with postgres_server.server() as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create table blob as select decode(repeat('00ff', 50000), 'hex') as b")
        yield uri


@scaled_client
def test_postgresql_blobs(uri: str, scale: Scale) -> None:
    rows = scale.nbytes // 100_000 + 1
    assert stream(scale, "sql", uri, f"select i, b from generate_series(1, {rows}) i, blob") == rows


@scaled_client
def test_s3(scale: Scale) -> None:
    line, rows = b"words and " * 99 + b"\n", 25_000
    times = scale.nbytes // (990 * rows) + 1
    with gated() as gate:
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir("large")
        fs.pipe("large/a.txt", line * rows)
        assert stream(scale, "s3", "s3://large/a.txt", times) == rows * times
        assert gate.requests > times

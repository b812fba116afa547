"""A unit whose block was taken waits for its next turn, perhaps for long: it must hold next to nothing meanwhile.

What it held would lie outside of every lease: the lease covers the block alone from then on.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.sources.tfrecord.write import encode_example, frame

TEXT = "".join(f"{i} " + "words and " * 40 + "\n" for i in range(25_000))


def _json() -> bytes:
    return "".join(json.dumps({"t": "words and " * 40, "y": i}) + "\n" for i in range(25_000)).encode()


def _csv() -> bytes:
    return ("a,b,t\n" + "".join(f"{i},{i * 0.5},{'words and ' * 20}\n" for i in range(45_000))).encode()


def _records() -> bytes:
    x = np.random.default_rng(0).random((14_000, 200), np.float32)
    return b"".join(frame(encode_example({"x": row})) for row in x)


def _tar() -> bytes:
    out, npy = io.BytesIO(), io.BytesIO()
    np.save(npy, np.random.default_rng(0).random((100, 100)))
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i in range(150):
            entry = tarfile.TarInfo(f"{i}.npy")
            entry.size = len(npy.getvalue())
            tar.addfile(entry, io.BytesIO(npy.getvalue()))
    return out.getvalue()


def _file(name: str, data: Callable[[], bytes], read: Callable[[str], ps.Dataset]) -> Callable[[Path], ps.Dataset]:
    def made(folder: Path) -> ps.Dataset:
        path = folder / name
        path.write_bytes(gzip.compress(data(), 1) if name.endswith(".gz") else data())
        return read(str(path))

    return made


def _samples() -> Iterator[np.ndarray]:
    for i in range(2000):
        yield np.full(2000, i, np.float32)


def _sqlite(folder: Path) -> ps.Dataset:
    with closing(sqlite3.connect(folder / "a.db")) as connection:
        connection.execute("create table a (i integer primary key, t text)")
        connection.executemany("insert into a values (?, ?)", ((i, "words and " * 40) for i in range(50_000)))
        connection.commit()
    return ps.read_sql(f"sqlite:///{folder}/a.db", "a", partition_on="i", partitions=1)


CASES: dict[str, Callable[[Path], ps.Dataset]] = {
    "json": _file("a.jsonl", _json, ps.read_json),
    "json.gz": _file("a.jsonl.gz", _json, ps.read_json),
    "text": _file("a.txt", TEXT.encode, ps.read_text),
    "text.gz": _file("a.txt.gz", TEXT.encode, ps.read_text),
    "csv": _file("a.csv", _csv, ps.read_csv),
    "csv.gz": _file("a.csv.gz", _csv, ps.read_csv),
    "tfrecord": _file("a.tfrecord", _records, ps.read_tfrecords),
    "tfrecord.gz": _file("a.tfrecord.gz", _records, ps.read_tfrecords),
    "tar.gz": _file("a.tar.gz", _tar, ps.read_webdataset),
    "generator": lambda folder: ps.from_generator(_samples),
    "sqlite": _sqlite,
}


def held(source: Any) -> tuple[int, int]:
    """Bytes of a unit's first block, and bytes that the unit still holds when that is gone."""
    gc.collect()
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        blocks = iter(source.open(0))
        block = next(blocks)
        nbytes = block.nbytes
        del block
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
        blocks.close()
        return nbytes, left
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_a_waiting_unit_holds_little(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    source = CASES[name](tmp_path).node.step.source
    assert hasattr(source, "open"), f"{name} is read by rows, not by units"
    next(iter(source.open(0)))  # what is made once, such as compiled code, is not the unit's
    nbytes, left = held(source)
    assert nbytes > 3_000_000
    # A stream has read a piece ahead; a block, or what it was made of, would be twice that or more.
    assert left < nbytes // 2 + 500_000

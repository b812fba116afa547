"""Inputs that claim or become far more than there is memory: refused by name, in a process that could not hold them.

One child reads them all under a real limit; the bombs inflate to more than that.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sqlite3
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import penstock as ps
from penstock.core.errors import PenstockError
from penstock.memory import run_limited
from penstock.sources.tfrecord.write import encode_example, frame

LIMIT = 300_000_000
BOMB_NBYTES = 2 * LIMIT


def bomb(path: Path, head: bytes) -> None:
    """A small gzip file of a head and very many zeros, packed once and repeated as members of the file."""
    zeros = gzip.compress(bytes(10_000_000), 9)
    path.write_bytes(gzip.compress(head) + zeros * (BOMB_NBYTES // 10_000_000))


def png(width: int, height: int, packed: bytes = zlib.compress(b""), *, gray: bool = False) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if gray else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def members(*named: tuple[str, bytes, int]) -> bytes:
    """A tar's bytes: names, contents, and the sizes that their headers claim."""
    out = io.BytesIO()
    for name, data, claimed in named:
        entry = tarfile.TarInfo(name)
        entry.size = claimed
        out.write(entry.tobuf(tarfile.GNU_FORMAT) + data.ljust(512, b"\0"))
    return out.getvalue()


def npy(rows: int) -> bytes:
    """An array that claims so many rows of a kilobyte, and has one."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (rows, 256)})
    return out.getvalue() + bytes(1024)


def sparse(path: Path, head: bytes, nbytes: int) -> None:
    """A file that takes no room on disk: a head, then so many zeros."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)


def make_tables(folder: Path) -> None:
    """One column of one row group, and one cell, each larger than the limit; a few kilobytes on disk."""
    schema = pa.schema([("a", pa.float64())])
    piece = pa.record_batch([pa.array(np.zeros(BOMB_NBYTES // 8 // 40))], schema=schema)
    with pq.ParquetWriter(folder / "column.parquet", schema) as writer:
        for _ in range(40):
            writer.write_batch(piece)  # one row group
    cell = pa.array([b"small", bytes(LIMIT)], pa.large_binary())
    pq.write_table(pa.table({"n": [1, 2], "a": cell}), folder / "cell.parquet", use_dictionary=False)
    with contextlib.closing(sqlite3.connect(folder / "blob.db")) as database:
        database.execute("create table t (id integer primary key, a blob)")
        database.execute("insert into t values (1, zeroblob(10)), (2, zeroblob(?))", (LIMIT // 2,))
        database.commit()


def make_arrays(folder: Path) -> None:
    """Chunks and rows larger than the limit."""
    values = BOMB_NBYTES // 4
    with h5py.File(folder / "chunk.h5", "w") as file:
        node = file.create_dataset("x", (10, values // 10), "f4", chunks=(10, values // 10), compression="gzip")
        node.id.write_direct_chunk((0, 0), b"".join(zeros_deflated(BOMB_NBYTES)))
    with h5py.File(folder / "row.h5", "w") as file:
        file.create_dataset("x", (2, values), "f4")  # never written: nothing on disk
    store = zarr.open_group(folder / "chunk.zarr", mode="w")
    store.create_array("x", shape=(10, values // 10), dtype="f4", chunks=(10, values // 10), compressors=None)
    (folder / "chunk.zarr" / "x" / "c" / "0").mkdir(parents=True)
    sparse(folder / "chunk.zarr" / "x" / "c" / "0" / "0", b"", BOMB_NBYTES)
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (2, values)})
    sparse(folder / "row.npy", out.getvalue(), 2 * BOMB_NBYTES)


def zeros_deflated(nbytes: int) -> Iterator[bytes]:
    packer = zlib.compressobj(1)
    for _ in range(nbytes // 10_000_000):
        yield packer.compress(bytes(10_000_000))
    yield packer.flush()


def make(folder: Path) -> None:
    make_tables(folder)
    make_arrays(folder)
    (folder / "line.csv").write_bytes(b"a,b\n1,2\n" + b"x" * (LIMIT // 3))  # zeros would look like UTF-16
    sparse(folder / "line.jsonl", b'{"a": 1}\n', BOMB_NBYTES)
    sparse(folder / "line.txt", b"text\n", BOMB_NBYTES)
    sparse(folder / "document.txt", b"text\n", BOMB_NBYTES)
    sparse(folder / "record.tfrecord", struct.pack("<Q", BOMB_NBYTES) + bytes(4), BOMB_NBYTES)
    sparse(folder / "member.tar", members(("a.bin", b"1", 1), ("b.bin", b"", BOMB_NBYTES))[:-512], BOMB_NBYTES + 1024)
    (folder / "pixels").mkdir()
    packed = b"".join(zeros_deflated(30_001 * 30_000))
    (folder / "pixels" / "real.png").write_bytes(png(30_000, 30_000, packed, gray=True))
    record = frame(encode_example({"x": np.arange(4.0), "y": 1}))
    (folder / "length.tfrecord").write_bytes(record + struct.pack("<Q", 1 << 60) + bytes(100))
    bomb(folder / "bomb.tfrecord", record + struct.pack("<Q", BOMB_NBYTES) + bytes(4))
    (folder / "images").mkdir()
    (folder / "images" / "huge.png").write_bytes(png(60_000, 60_000))
    (folder / "length.tar").write_bytes(members(("a.bin", b"1", 1), ("b.bin", b"2", 1 << 40)) + bytes(1024))
    bomb(folder / "bomb.tar.gz", members(("a.bin", b"1", 1), ("b.bin", b"", BOMB_NBYTES))[:-512])
    bomb(folder / "bomb.jsonl.gz", b'{"a": 1}\n')
    bomb(folder / "bomb.csv.gz", b"a,b\n1,2\n")
    bomb(folder / "bomb.txt.gz", b"text\n")
    (folder / "claims.npy").write_bytes(npy(1 << 40))


READ: dict[str, Callable[[Path], ps.Dataset]] = {
    "length.tfrecord": lambda path: ps.read_tfrecords(path, check_crc=False, access="stream"),
    "bomb.tfrecord": lambda path: ps.read_tfrecords(path, check_crc=False, max_record="10MB"),
    "images": lambda path: ps.read_images(path, size=(8, 8), labels=None),
    "length.tar": ps.read_webdataset,
    "bomb.tar.gz": lambda path: ps.read_webdataset(path, max_sample="10MB"),
    "bomb.jsonl.gz": lambda path: ps.read_json(path, max_line="10MB"),
    "bomb.csv.gz": lambda path: ps.read_csv(path, max_line="10MB"),
    "bomb.txt.gz": lambda path: ps.read_text(path, max_line="10MB"),
    "claims.npy": ps.read_numpy,
    "column.parquet": lambda path: ps.read_parquet(path, columns=["a"]),
    "cell.parquet": lambda path: ps.read_parquet(path),
    "blob.db": lambda path: ps.read_sql(f"sqlite:///{path}", "t", columns=["a"]),
    "chunk.h5": lambda path: ps.read_hdf5(path, x="x"),
    "row.h5": lambda path: ps.read_hdf5(path, x="x"),
    "chunk.zarr": lambda path: ps.read_zarr(path, x="x"),
    "row.npy": ps.read_numpy,
    "line.csv": lambda path: ps.read_csv(path, max_line="20MB"),
    "line.jsonl": lambda path: ps.read_json(path, max_line="20MB"),
    "line.txt": lambda path: ps.read_text(path, max_line="20MB"),
    "document.txt": lambda path: ps.read_text(path, by="document"),
    "record.tfrecord": lambda path: ps.read_tfrecords(path, check_crc=False),
    "member.tar": ps.read_webdataset,
    "pixels": lambda path: ps.read_images(path, size=(8, 8), labels=None),
}


SAID = {
    "column.parquet": "2000 rows",  # read in slices
    "row.npy": "A batch needs 600 MB",
    "document.txt": "read text(1 documents) needs 1.2 GB",
}
"""What is said where it is not the file's name."""


def main(folder: Path) -> None:
    """The child: what came of each."""
    for name, read in READ.items():
        try:
            told = f"{sum(1 for _ in read(folder / name).batch(1).take(2000))} rows"
        except PenstockError as error:
            told = str(error).replace("\n", " ")
        sys.stdout.write(f"{name}\t{told}\n")


@pytest.mark.timeout(900)
def test_claims_and_bombs_are_refused_by_name_within_the_limit(tmp_path: Path) -> None:
    make(tmp_path)
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = run_limited([sys.executable, __file__, str(tmp_path)], LIMIT, env=environment, capture=True, timeout_s=800)
    assert done.returncode == 0 and not done.killed, done.stderr
    told = dict(line.split("\t") for line in (done.stdout or "").splitlines())
    assert set(told) == set(READ)
    assert not {name: what for name, what in told.items() if SAID.get(name, name) not in what}, told
    assert done.peak_nbytes < LIMIT


@pytest.mark.parametrize("access", ["auto", "stream"])
def test_members_named_outside_of_the_archive_write_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    """Names are keys, never paths: neither '..' nor an absolute name reaches a file."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    path = inside / "a.tar"
    named = [("../../evil.txt", b"1", 1), (f"{tmp_path}/absolute.txt", b"1", 1), ("c/../../../up.txt", b"1", 1)]
    path.write_bytes(members(*named) + bytes(1024))
    before = sorted(tmp_path.rglob("*"))
    found = ps.read_webdataset(path, columns=["txt", "__key__"], access=access)
    keys = [key for batch in found.batch(1) for key in batch["__key__"]]
    assert sorted(keys) == sorted(name.removesuffix(".txt") for name, *_ in named)
    assert sorted(tmp_path.rglob("*")) == before


if __name__ == "__main__":
    main(Path(sys.argv[1]))

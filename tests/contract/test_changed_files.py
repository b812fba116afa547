"""A file that changes under a dataset is noticed by every source: never other rows, fewer rows, a hang or a signal."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import duckdb
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import penstock as ps
from penstock.core.errors import FileChanged
from penstock.sources.storage import remote
from penstock.sources.tfrecord.write import write_records

ROWS = 3000

Write = Callable[[Path, int], None]


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(10, 99, (ROWS, 4))


def text(seed: int) -> bytes:
    return b"a,b,c,d\n" + b"".join(b"%d,%d,%d,%d\n" % tuple(row) for row in rows(seed).tolist())


def lines(seed: int) -> bytes:
    return b"".join(json.dumps({"a": a, "b": b}).encode() + b"\n" for a, b, _, _ in rows(seed).tolist())


def hdf5(path: Path, seed: int, **how: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows(seed), **how)


def tar(path: Path, seed: int) -> None:
    with tarfile.open(path, "w") as out:
        for number, row in enumerate(rows(seed)[:300]):
            data = BytesIO(json.dumps(row.tolist()).encode())
            info = tarfile.TarInfo(f"{number:06}.json")
            info.size = len(data.getvalue())
            out.addfile(info, data)


def packed_tar(path: Path, seed: int) -> None:
    tar(path, seed)
    path.write_bytes(gzip.compress(path.read_bytes()))


def records5(path: Path, seed: int) -> None:
    kind = np.dtype([("text", h5py.string_dtype()), ("n", "i4")])
    with h5py.File(path, "w") as file:
        values = [(f"row {a}", b) for a, b, _, _ in rows(seed).tolist()]
        file.create_dataset("x", data=np.array(values, kind))


def picture(path: Path, seed: int) -> None:
    path.mkdir(exist_ok=True)
    for number in range(4):
        pixels = np.random.default_rng(seed + number).integers(0, 255, (16, 16, 3), np.uint8)
        cv2.imwrite(str(path / f"{number}.png"), pixels, [cv2.IMWRITE_PNG_COMPRESSION, 0])


def documents(path: Path, seed: int) -> None:
    path.mkdir(exist_ok=True)
    for number in range(4):
        (path / f"{number}.txt").write_bytes(text(seed + number))


def store(path: Path, seed: int) -> None:
    array = zarr.create_array(str(path), shape=(ROWS, 4), dtype="i8", chunks=(500, 4), compressors=None)
    array[:] = rows(seed)


SOURCES: dict[str, tuple[str, Write, Callable[[Path], Any]]] = {
    "csv": ("a.csv", lambda p, s: p.write_bytes(text(s)) and None, ps.read_csv),
    "csv.gz": ("a.csv.gz", lambda p, s: p.write_bytes(gzip.compress(text(s))) and None, ps.read_csv),
    "json": ("a.jsonl", lambda p, s: p.write_bytes(lines(s)) and None, ps.read_json),
    "json.gz": ("a.jsonl.gz", lambda p, s: p.write_bytes(gzip.compress(lines(s))) and None, ps.read_json),
    "text": ("a.txt", lambda p, s: p.write_bytes(text(s)) and None, ps.read_text),
    "parquet": ("a.parquet", lambda p, s: pq.write_table(pa.table({"x": rows(s)[:, 0]}), p), ps.read_parquet),
    "npy": ("a.npy", lambda p, s: np.save(p, rows(s)), ps.read_numpy),
    "hdf5": ("a.h5", hdf5, lambda p: ps.read_hdf5(p, "x")),
    "hdf5 rows": ("a.h5", hdf5, lambda p: ps.read_hdf5(p, "x", access="rows")),
    "hdf5 gzip": (
        "a.h5",
        lambda p, s: hdf5(p, s, chunks=(500, 4), compression="gzip"),
        lambda p: ps.read_hdf5(p, "x"),
    ),
    "tfrecord": (
        "a.tfrecord",
        lambda p, s: write_records(p, [row.tobytes() for row in rows(s)]),
        lambda p: ps.read_tfrecords(p, parse=None),
    ),
    "webdataset": ("a.tar", tar, ps.read_webdataset),
    "npz": ("a.npz", lambda p, s: np.savez(p, x=rows(s)), ps.read_numpy),
    "hdf5 text in records": ("a.h5", records5, lambda p: ps.read_hdf5(p, "x.text")),
    "tfrecord stream": (
        "a.tfrecord",
        lambda p, s: write_records(p, [row.tobytes() for row in rows(s)]),
        lambda p: ps.read_tfrecords(p, parse=None, access="stream"),
    ),
    "webdataset stream": ("a.tar", tar, lambda p: ps.read_webdataset(p, access="stream")),
    "webdataset gz": ("a.tar.gz", packed_tar, ps.read_webdataset),
}


def drain(dataset: Any) -> int:
    return sum(len(next(iter(b.values())) if isinstance(b, dict) else b) for b in dataset.batch(64))


def shrink(path: Path, write: Write) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path, write: Write) -> None:
    """Another file of the same size and the same time of change in its place."""
    was = path.stat()
    beside = path.with_name("beside" + path.name)
    shutil.copyfile(path, beside)
    os.utime(beside, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(beside, path)


def rewrite(path: Path, write: Write) -> None:
    """Other contents, in place, of the same size where the format allows it."""
    time.sleep(0.02)  # file systems tell time in ticks of some milliseconds
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data)


def grow(path: Path, write: Write) -> None:
    with path.open("ab") as file:
        file.write(b"\n" * 1000)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [shrink, replace, rewrite, grow], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", SOURCES)
def test_a_changed_file_is_named_in_the_next_epoch(tmp_path: Path, name: str, change: Any) -> None:
    file, write, read = SOURCES[name]
    path = tmp_path / file
    write(path, 1)
    dataset = read(path)
    count = drain(dataset)
    assert count in (ROWS, ROWS + 1, 300)
    assert drain(dataset) == count
    change(path, write)
    with pytest.raises(FileChanged, match=file.replace(".", r"\.")) as caught:
        drain(dataset)
    assert len(str(caught.value)) < 500


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [cut, bytes], ids=["shorter", "written again"])
@pytest.mark.parametrize("name", [name for name in SOURCES if name != "hdf5 rows"])
def test_a_changed_object_of_a_remote_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Any
) -> None:
    """A store is asked for the tag of a file now and then; here, each time."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "RECENT_S", 0.0)
    file, write, read = SOURCES[name]
    write(tmp_path / file, 1)
    store, folder = fsspec.filesystem("memory"), f"changed-{name.replace(' ', '-')}-{change.__name__}"
    store.pipe(f"/{folder}/{file}", (tmp_path / file).read_bytes())
    dataset = read(f"memory://{folder}/{file}")
    count = drain(dataset)
    assert count in (ROWS, ROWS + 1, 300) and drain(dataset) == count
    time.sleep(0.002)  # this store's tag is the time of writing
    store.pipe(f"/{folder}/{file}", change((tmp_path / file).read_bytes()))
    with pytest.raises(FileChanged, match=file.replace(".", r"\.")):
        drain(dataset)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [shrink, replace, rewrite], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("write", "read", "inside"),
    [
        (picture, lambda p: ps.read_images(p), "2.png"),
        (documents, lambda p: ps.read_text(p, by="document"), "2.txt"),
        (store, lambda p: ps.read_zarr(p), "c/2/0"),
        (store, lambda p: ps.read_zarr(p), "zarr.json"),
    ],
    ids=["images", "documents", "zarr chunk", "zarr description"],
)
def test_a_changed_file_of_a_folder_is_named(tmp_path: Path, write: Write, read: Any, inside: str, change: Any) -> None:
    folder = tmp_path / "folder"
    write(folder, 1)
    dataset = read(folder)
    list(dataset)
    change(folder / inside, write)
    with pytest.raises(FileChanged, match=inside):
        list(dataset)


def test_a_zarr_chunk_that_goes_missing_is_not_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    store(folder, 1)
    dataset = ps.read_zarr(folder)
    list(dataset)
    (folder / "c/3/0").unlink()
    with pytest.raises(FileChanged, match=r"c/3/0.*gone"):
        list(dataset)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_database_file_may_be_written_to_but_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.db"
    connect: Any = sqlite3.connect if kind == "sqlite" else duckdb.connect

    def run(path: Path, *statements: str) -> None:
        connection = connect(str(path))
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    run(path, "create table t (a integer)", "insert into t values (1), (2)")
    dataset = ps.read_sql(f"{kind}:///{path}", "select a from t")
    assert drain(dataset) == 2
    run(path, "create table log (a integer)", "insert into log values (1)")
    assert drain(dataset) == 2
    run(tmp_path / "b.db", "create table t (a integer)", "insert into t values (1)")
    os.replace(tmp_path / "b.db", path)
    with pytest.raises(FileChanged, match=r"a\.db"):
        drain(dataset)


def test_a_change_between_making_and_reading_is_noticed(tmp_path: Path) -> None:
    """Offsets are from the first look, not from the first read."""
    np.save(tmp_path / "a.npy", rows(1))
    dataset = ps.read_numpy(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", rows(2)[:, :3].copy())
    os.replace(tmp_path / "b.npy", tmp_path / "a.npy")
    with pytest.raises(FileChanged, match=r"a\.npy"):
        list(dataset)


@pytest.mark.timeout(120)
def test_an_array_file_cut_short_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    """Mapped pages behind the end of a file are a signal (SIGBUS), not an exception."""
    np.save(tmp_path / "a.npy", np.zeros((20_000, 1000), np.float32))
    script = (
        "import os, sys, penstock as ps\n"
        "from penstock.core.errors import FileChanged\n"
        "path = sys.argv[1]\n"
        "batches = iter(ps.read_numpy(path).shuffle(seed=1).repeat().batch(64))\n"
        "for _ in range(20): next(batches)\n"
        "os.truncate(path, 4096)\n"
        "try:\n"
        "    for _ in range(2000): next(batches)\n"
        "except FileChanged as error: print('named', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.npy")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "named" in done.stdout and "a.npy" in done.stdout


def test_a_dataset_made_anew_reads_what_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text(1))
    assert drain(ps.read_csv(path)) == ROWS
    path.write_bytes(text(2)[: len(text(2)) // 2].rpartition(b"\n")[0])
    assert 0 < drain(ps.read_csv(path)) < ROWS


def test_a_copy_in_another_process_knows_the_file_of_the_first(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "a.csv"
    path.write_bytes(text(1))
    dataset = ps.read_csv(path)
    source = dataset.node.step.source
    assert source.num_units() == 1
    copy = pickle.loads(pickle.dumps(source))
    path.write_bytes(text(2) + b"1,2,3,4\n")
    with pytest.raises(FileChanged):
        list(copy.open(0))

"""Every public reader in one table: how to write real files for it, how to damage some of their rows, how to read.

Row i of every dataset is the number i, whatever the format, so that a lost or doubled row is seen at once.
A new reader is one line in `READERS`.
"""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

import penstock as ps
from penstock.sources.tfrecord.write import encode_example, write_records

Damaged = Collection[int]
Write = Callable[[Path, int, Damaged], None]
Arguments = Callable[[Path], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Reader:
    """One way to read: `write` makes the files, `arguments` are those of the public function, without a policy."""

    name: str
    public: str
    write: Write
    arguments: Arguments
    number: Callable[[Any], int] = int
    """A row's number, from an element."""
    damages: bool = True
    """Whether a row can be damaged: sources that call Python functions or list names have no stored bytes."""

    def read(self, folder: Path, **policy: Any) -> ps.Dataset:
        positional, options = self.arguments(folder)
        ds: ps.Dataset = getattr(ps, self.public)(*positional, **options, **policy)
        return ds


def jpeg(number: int) -> bytes:
    return bytes(cv2.imencode(".jpg", np.full((8, 8, 3), number, np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 100])[1])


def pixel(image: Any) -> int:
    return int(np.asarray(image).mean().round())


def images(folder: Path, rows: int, damaged: Damaged) -> None:
    (folder / "class").mkdir()
    for i in range(rows):
        data = jpeg(i)
        (folder / "class" / f"{i:04}.jpg").write_bytes(data[: len(data) // 2] if i in damaged else data)


def csv_text(rows: int, damaged: Damaged) -> str:
    return "n,s\n" + "".join("one,two,three\n" if i in damaged else f"{i},row {i}\n" for i in range(rows))


def csv(folder: Path, rows: int, damaged: Damaged) -> None:
    (folder / "a.csv").write_text(csv_text(rows, damaged))


def csv_gz(folder: Path, rows: int, damaged: Damaged) -> None:
    (folder / "a.csv.gz").write_bytes(gzip.compress(csv_text(rows, damaged).encode()))


def json_lines(folder: Path, rows: int, damaged: Damaged) -> None:
    lines = ['{"n": ' if i in damaged else json.dumps({"n": i, "s": f"row {i}"}) for i in range(rows)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")


def text_lines(folder: Path, rows: int, damaged: Damaged) -> None:
    (folder / "a.txt").write_bytes(b"".join(b"\xff\xfe\n" if i in damaged else b"%d\n" % i for i in range(rows)))


def documents(folder: Path, rows: int, damaged: Damaged) -> None:
    for i in range(rows):
        (folder / f"{i:04}.txt").write_bytes(b"\xff\xfe" if i in damaged else b"%d" % i)


def parquet(folder: Path, rows: int, damaged: Damaged) -> None:
    """A file of one row each: a damaged row is a file cut short."""
    for i in range(rows):
        pq.write_table(pa.table({"n": [i]}), folder / f"{i:04}.parquet")
        if i in damaged:
            data = (folder / f"{i:04}.parquet").read_bytes()
            (folder / f"{i:04}.parquet").write_bytes(data[:-20])


def arrays(folder: Path, rows: int, damaged: Damaged) -> None:
    for i in range(rows):
        np.save(folder / f"{i:04}.npy", np.array([i]))
        if i in damaged:
            (folder / f"{i:04}.npy").write_bytes(b"not an array")


def records(folder: Path, rows: int, damaged: Damaged) -> None:
    path = folder / "a.tfrecord"
    write_records(str(path), [encode_example({"n": np.array([1000 + i])}) for i in range(rows)])
    data = bytearray(path.read_bytes())
    size = len(data) // rows
    for i in damaged:
        data[i * size + size // 2] ^= 0xFF
    path.write_bytes(data)


def tar(folder: Path, rows: int, damaged: Damaged) -> None:
    with tarfile.open(folder / "a.tar", "w") as shard:
        for i in range(rows):
            data = b"{" if i in damaged else json.dumps({"n": i}).encode()
            member = tarfile.TarInfo(f"{i:04}.json")
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))


def hdf5(folder: Path, rows: int, damaged: Damaged) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        values = np.arange(rows)[:, None].repeat(8, 1)
        node = file.create_dataset("x", data=values, chunks=(1, 8), compression="gzip")
        places = [node.id.get_chunk_info(i).byte_offset for i in range(rows)]
    with open(folder / "a.h5", "r+b") as raw:
        for i in damaged:
            raw.seek(places[i])
            raw.write(bytes(8))


def contiguous_hdf5(folder: Path, rows: int, damaged: Damaged) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(rows)[:, None].repeat(8, 1)


def zarr_store(folder: Path, rows: int, damaged: Damaged) -> None:
    values = np.arange(rows)[:, None].repeat(8, 1)
    zarr.open_group(folder / "a.zarr", mode="w").create_array("x", data=values, chunks=(1, 8))
    for i in damaged:
        (folder / "a.zarr" / "x" / "c" / str(i) / "0").write_bytes(b"not a chunk")


def sqlite(folder: Path, rows: int, damaged: Damaged) -> None:
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("create table t (id integer primary key, jpg blob)")
    for i in range(rows):
        connection.execute("insert into t values (?, ?)", (i, b"broken" if i in damaged else jpeg(i)))
    connection.commit()
    connection.close()


def database(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    options = {"partition_on": "id", "columns": ["jpg"], "images": {"jpg": {"size": (8, 8)}}}
    return (f"sqlite:///{folder}/a.db", "t"), options


class Numbers(Sequence[int]):
    """What `from_torch` reads: an item or, where it is damaged, an error."""

    def __init__(self, rows: int, damaged: Damaged) -> None:
        self.rows, self.damaged = rows, frozenset(damaged)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Any) -> Any:
        if index in self.damaged:
            raise ValueError("damaged")
        return int(index)


def note_items(folder: Path, rows: int, damaged: Damaged) -> None:
    (folder / "items.json").write_text(json.dumps([rows, sorted(damaged)]))


def noted(folder: Path) -> tuple[int, list[int]]:
    rows, damaged = json.loads((folder / "items.json").read_text())
    return rows, damaged


def items(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (Numbers(*noted(folder)),), {}


def slices(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (np.arange(noted(folder)[0]),), {}


def generator(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rows = noted(folder)[0]
    return (lambda: iter(range(rows)),), {}


def at(name: str, **options: Any) -> Arguments:
    """A file, a pattern or (without a name) the folder itself."""
    return lambda folder: ((f"{folder}/{name}",), options)


def column_n(element: Any) -> int:
    return int(element["n"])


def text(element: Any) -> int:
    return int(element if isinstance(element, str) else element["text"])


def file_name(element: Any) -> int:
    return int(Path(str(element)).stem)


def first(element: Any) -> int:
    return int(np.asarray(element).reshape(-1)[0])


def in_json(element: Any) -> int:
    return int(element["json"]["n"])


def jpg_column(element: Any) -> int:
    return pixel(element["jpg"])


def offset(element: Any) -> int:
    return int(np.asarray(element["n"]).reshape(-1)[0]) - 1000


READERS = [
    Reader("images", "read_images", images, at("", size=8, labels=None), pixel),
    Reader("csv", "read_csv", csv, at("a.csv"), column_n),
    Reader("csv.gz", "read_csv", csv_gz, at("a.csv.gz"), column_n),
    Reader("json", "read_json", json_lines, at("a.jsonl"), column_n),
    Reader("lines", "read_text", text_lines, at("a.txt"), text),
    Reader("documents", "read_text", documents, at("*.txt", by="document"), text),
    Reader("parquet", "read_parquet", parquet, at("*.parquet"), column_n),
    Reader("npy", "read_numpy", arrays, at("*.npy")),
    Reader("tfrecord rows", "read_tfrecords", records, at("a.tfrecord", access="rows"), offset),
    Reader("tfrecord units", "read_tfrecords", records, at("a.tfrecord", access="units"), offset),
    Reader("tfrecord", "read_tfrecords", records, at("a.tfrecord", access="stream"), offset),
    Reader("tar rows", "read_webdataset", tar, at("a.tar", access="rows"), in_json),
    Reader("tar", "read_webdataset", tar, at("a.tar", access="stream"), in_json),
    Reader("hdf5", "read_hdf5", hdf5, at("a.h5", x="x", access="blocks"), first),
    Reader("hdf5 rows", "read_hdf5", contiguous_hdf5, at("a.h5", x="x", access="rows"), first, damages=False),
    Reader("zarr", "read_zarr", zarr_store, at("a.zarr", x="x", access="blocks"), first),
    Reader("zarr rows", "read_zarr", zarr_store, at("a.zarr", x="x", access="rows"), first),
    Reader("sqlite", "read_sql", sqlite, database, jpg_column),
    Reader("items", "from_torch", note_items, items),
    Reader("slices", "from_tensor_slices", note_items, slices, damages=False),
    Reader("generator", "from_generator", note_items, generator, damages=False),
    Reader("names", "list_files", documents, at("*.txt"), file_name, damages=False),
]

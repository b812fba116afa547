"""Open a dataset by looking at it: by scheme, by suffix, by what a folder holds, by a file's first bytes.

Covers: `open_any`, for commands that are given a path or address and nothing else.
Does not cover: reading (the other files of read/), which table of a database (tables.py).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from penstock.core.errors import InvalidInput, NotFound
from penstock.dataset import Dataset
from penstock.native.crc32c import masked_crc32c
from penstock.read.arrays import read_numpy
from penstock.read.csv import read_csv
from penstock.read.hdf5 import read_hdf5
from penstock.read.images import read_images
from penstock.read.json import read_json
from penstock.read.parquet import read_parquet
from penstock.read.recognise.tables import database_of, open_database
from penstock.read.text import read_text
from penstock.read.tfrecord import read_tfrecords
from penstock.read.webdataset import read_webdataset
from penstock.read.zarr import read_zarr
from penstock.sources.storage import files as storage

_READERS: dict[str, Callable[..., Dataset]] = {
    "csv": read_csv,
    "tsv": read_csv,
    "parquet": read_parquet,
    "tfrecord": read_tfrecords,
    "tfrecords": read_tfrecords,
    "tar": read_webdataset,
    "tgz": read_webdataset,
    "h5": read_hdf5,
    "hdf5": read_hdf5,
    "zarr": read_zarr,
    "jsonl": read_json,
    "ndjson": read_json,
    "json": read_json,
    "npy": read_numpy,
    "npz": read_numpy,
    "txt": read_text,
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff"), read_images),
}

_SIZED = (read_images, read_webdataset, read_tfrecords)
"""Readers that resize images while they decode."""

_LOOKED_AT = 200
"""Files of a folder by which it is judged."""

_HEAD = 4096
"""Bytes of a file by which it is judged where its name says nothing."""

_MAGIC = (
    (b"PAR1", "parquet"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"SQLite format 3\0", "sql"),
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"GIF8", "gif"),
)


def open_any(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    query: str | None = None,
    **options: Any,
) -> Dataset:
    """The dataset at a path, glob, URL or database address.

    `size` reaches readers of images; `query` is the table or select of a database; other options go to the reader.
    """
    text = os.fspath(path)
    kind = kind_of(text)
    if kind == "sql":
        return open_database(text, query, **options)
    if query is not None:
        raise InvalidInput(f"A query is for databases; {text!r} is {kind}.")
    reader = _READERS[kind]
    if size is not None and reader in _SIZED and reader is not read_tfrecords:
        options["size"] = size
    return reader(text, **options)


def kind_of(path: str) -> str:
    """What tells how to read a path: a suffix, or "sql"."""
    if database_of(path) is not None:
        return "sql"
    found = _suffix(path)
    if found is not None:
        return _checked_json(path) if found == "json" else found
    local = storage.local_path(path)
    if storage.is_remote(path) or not os.path.isdir(local):
        if not storage.is_remote(path) and not os.path.exists(local):
            raise NotFound(f"{path!r} does not exist.")
        return _kind_of_content(path)
    return _kind_of_folder(path, local)


_STORES = ("zarr.json", ".zgroup", ".zarray")
"""Files that make a folder a Zarr store."""


def _kind_of_folder(path: str, local: str) -> str:
    """The kind that most of a folder's files have."""
    if any(os.path.exists(os.path.join(local, name)) for name in _STORES):
        return "zarr"
    kinds: dict[str, int] = {}
    for name in islice(_names(local), _LOOKED_AT):
        kind = _suffix(name)
        if kind is not None:
            kinds[kind] = kinds.get(kind, 0) + 1
    if not kinds:
        raise InvalidInput(f"Folder {path!r} holds no file with one of the endings {', '.join(sorted(_READERS))}.")
    return max(kinds, key=lambda kind: kinds[kind])


def _kind_of_content(path: str) -> str:
    """The kind of one file, by its first bytes."""
    try:
        head = storage.read_range(path, 0, min(_HEAD, storage.file_size(path)))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path!r} cannot be looked into: {error}.") from error
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return "tar"
    if _is_tfrecord(head):
        return "tfrecord"
    if head.lstrip()[:1] in (b"{", b"["):
        return _checked_json(path)
    raise InvalidInput(
        f"{path!r} has none of the known endings, and its first bytes tell nothing: {', '.join(sorted(_READERS))}."
    )


def _is_tfrecord(head: bytes) -> bool:
    """A record begins with its length and a checksum of the length."""
    if len(head) <= 12:
        return False
    return int.from_bytes(head[8:12], "little") == masked_crc32c(head[:8])


def _checked_json(path: str) -> str:
    """JSON lines, or a sentence about what JSON it is instead."""
    local = storage.local_path(path)
    if storage.is_remote(path) or not os.path.isfile(local):
        return "jsonl"
    with open(local, "rb") as file:
        head = file.read(_HEAD)
    if head[:2] == b"\x1f\x8b":
        head = zlib.decompressobj(31).decompress(head, _HEAD)
    if head.lstrip()[:1] == b"[":
        raise InvalidInput(
            f"{path!r} is one JSON array. It cannot be read in pieces: write one object a line, for example with "
            f"jq -c '.[]' {path} > {path}l"
        )
    return "jsonl"


def _suffix(path: str) -> str | None:
    """The known ending of a name, seen through .gz and .zst; that of TFRecord shards stands in the middle."""
    name = path.lower().rstrip("/").rpartition("/")[2]
    if ".tfrecord" in name:
        return "tfrecord"
    for packed in (".gz", ".zst"):
        name = name.removesuffix(packed)
    last = name.rpartition(".")[2] if "." in name else ""
    return last if last in _READERS else None


def _names(folder: str) -> Iterator[str]:
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in sorted(folders) if name[0] not in "._"]
        yield from (name for name in names if name[0] not in "._")

"""Files of text that may be compressed, by their names or by their first bytes.

Covers: which compression a file has, and the stream that takes it off.
Does not cover: TFRecord and tar, whose own first bytes say more (inflate.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import BinaryIO, cast

import pyarrow as pa

from penstock.core.errors import DataError
from penstock.sources.storage import files as storage

_COMPRESSION = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4"}
_MAGIC = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}


def compression_of(path: str) -> str | None:
    """How a file is compressed, by its name, or else by its first bytes.

    Of remote files with one ending in one folder the first that is asked for speaks for all: a request for each of a
    million would take hours.
    """
    kind = next((kind for suffix, kind in _COMPRESSION.items() if path.lower().endswith(suffix)), None)
    if kind is not None:
        return kind
    return _of_folder(*_family(path)).get(path) if storage.is_remote(path) else _by_content(path)


def _family(path: str) -> tuple[str, str]:
    folder, _, name = path.partition("?")[0].rpartition("/")
    return folder, name.rpartition(".")[2]


class _FirstSpeaks:
    """What the first file that was looked at says, for all files of its kind."""

    def __init__(self) -> None:
        self._found: tuple[str | None] | None = None

    def get(self, path: str) -> str | None:
        if self._found is None:
            self._found = (_looked_at(path),)
        return self._found[0]


@lru_cache(maxsize=4096)
def _of_folder(_folder: str, _ending: str) -> _FirstSpeaks:
    return _FirstSpeaks()


@lru_cache(maxsize=65_536)
def _by_content(path: str) -> str | None:
    return _looked_at(path)


def _looked_at(path: str) -> str | None:
    try:
        head = storage.read_range(path, 0, 10)
    except DataError:
        return None  # reported when it is read
    # "BZh" alone may begin a text; a digit and the mark of a block stand behind it.
    if head.startswith(b"BZh") and head[4:10] != b"1AY&SY":
        return None
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def open_decompressed(path: str, kind: str) -> BinaryIO:
    """A compressed file as a stream of text, decompressed as it is read."""
    raw = pa.PythonFile(storage.open_file(path)) if storage.is_remote(path) else pa.OSFile(storage.local_path(path))
    return cast(BinaryIO, pa.CompressedInputStream(raw, kind))

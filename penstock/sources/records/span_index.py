"""Where each record of each file lies, kept on disk, so that any row can be read for itself.

Covers: `SpanIndex`: 12 bytes a record in memory-mapped .npy files of the cache folder, one for each data file, made
once in a streaming pass and found again by the file's path and stamp.
Does not cover: finding the records of a format (sources/tfrecord/index.py, sources/tar/index.py).

The last entry of an index is no record: its offset is where the walk ended and its length a code, 0 for the end of
the file and otherwise why the rest cannot be read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol

import numpy as np

from penstock.core.errors import BadData, DataError, NotFound
from penstock.core.source import OnError
from penstock.sources.listing.sorter import chunks
from penstock.sources.storage import files as storage
from penstock.sources.storage.index_folder import cache_folder, written
from penstock.sources.storage.unchanged import Unchanged

SPAN = np.dtype([("offset", "<i8"), ("length", "<u4")])

MAPPED = 128
"""Indexes kept mapped; a mapping holds a file descriptor."""

NAME_NBYTES = 16
"""Of a file's index in the cache folder, as a hash."""

WAITING = 4096
"""Files handed to the threads at a time."""

SAMPLED = 256
"""Records whose lengths stand for all when memory is estimated."""


class Walk(Protocol):
    """How a format's files are walked. Picklable; `key` differs where the walk would find other records."""

    @property
    def key(self) -> str: ...

    def spans(self, path: str) -> Iterator[np.ndarray]:
        """Arrays of SPAN, and at last one entry with the end and its code."""

    def reason(self, code: int) -> str:
        """A code in words."""


class SpanIndex:
    """The records of several files as one numbered sequence."""

    def __init__(self, paths: Sequence[str], walk: Walk) -> None:
        self.paths, self.walk, self._unchanged = paths, walk, Unchanged(len(paths))
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._maps: OrderedDict[int, np.ndarray] = OrderedDict()
        self._folder, self._names = "", np.empty((0, NAME_NBYTES), np.uint8)
        self._held: dict[int, np.ndarray] = {}
        self._starts: np.ndarray | None = None
        self._ends = np.empty(0, SPAN)
        self._told = [False]

    def through(self, paths: Sequence[str]) -> SpanIndex:
        """The same index of the same files, by other names for them; damage is reported by one of the two."""
        other = SpanIndex.__new__(SpanIndex)
        vars(other).update(vars(self), paths=paths)
        return other

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def starts(self) -> np.ndarray:
        """The number of the first record of each file, and the number of all."""
        with self._lock:
            if self._starts is None:
                self._build()
            assert self._starts is not None
            return self._starts

    def _build(self) -> None:
        """Find or make the index of every file. What is held of each is 36 bytes, however many there are."""
        count = len(self.paths)
        self._folder, self._names, self._ends = (
            cache_folder(),
            np.empty((count, NAME_NBYTES), np.uint8),
            np.empty(count, SPAN),
        )
        starts = np.zeros(count + 1, np.int64)
        # Walking waits for storage and runs compiled code, so that threads help.
        with ThreadPoolExecutor(min(8, count, (os.cpu_count() or 1) + 2)) as pool:
            for some in chunks(range(count), WAITING):  # a pool takes an object of 1 KB for each call that waits
                starts[some[0] + 1 : some[-1] + 2] = list(pool.map(self._keep, some))
        self._starts = np.cumsum(starts)

    def _keep(self, file: int) -> int:
        """Find or make the index of one file: how many records it has."""
        path = self.paths[file]
        self._unchanged.check(file, path)
        key = repr((os.path.abspath(path) if not storage.is_remote(path) else path, storage.stamp(path), self.walk.key))
        name = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=NAME_NBYTES).digest()
        self._names[file] = np.frombuffer(name, np.uint8)
        kept = self._place(file)
        spans: np.ndarray | None = _mapped(kept)
        if spans is None:
            try:
                with written(kept) as out:
                    _write(out, self.walk.spans(path))
                spans = _mapped(kept)
            except (BadData, NotFound):
                raise
            except DataError:
                spans = None  # a full disk: the index stays in memory, which 12 bytes a record allow
        if spans is None:
            spans = self._held[file] = np.concatenate(list(self.walk.spans(path)))
        self._ends[file] = spans[-1]
        return len(spans) - 1

    def _place(self, file: int) -> str:
        return os.path.join(self._folder, f"spans-{self._names[file].tobytes().hex()}.npy")

    def spans(self, file: int) -> np.ndarray:
        """The records of one file, as a memory-mapped array of SPAN."""
        self.starts  # noqa: B018  (builds the index)
        with self._lock:
            found = self._maps.pop(file, None)
            if found is None:
                found = self._held.get(file)
                if found is None:
                    found = _mapped(self._place(file))
                if found is None:  # cleared behind our back
                    found = np.concatenate(list(self.walk.spans(self.paths[file])))
            self._maps[file] = found
            while len(self._maps) > MAPPED:
                self._maps.popitem(last=False)
        return found[:-1]

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """File, offset and length of each row."""
        files = np.searchsorted(self.starts, rows, side="right") - 1
        offsets, lengths = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for file in np.unique(files):
            mine = files == file
            found = self.spans(int(file))[rows[mine] - self.starts[file]]
            offsets[mine], lengths[mine] = found["offset"], found["length"]
        return files, offsets, lengths

    def where(self, row: int) -> str:
        """A row in words: file and byte offset."""
        files, offsets, _ = self.locate(np.array([row]))
        return place(self.paths[int(files[0])], int(offsets[0]))

    def tell_damage(self, on_error: OnError) -> None:
        """Report files that could not be walked to their end, once."""
        self.starts  # noqa: B018  (builds the index)
        with self._lock:
            if self._told[0]:
                return
            self._told[0] = True
        for file in np.flatnonzero(self._ends["length"]):
            offset, code = self._ends[file].item()
            try:
                on_error.bad(BadData(place(self.paths[int(file)], offset), self.walk.reason(code)))
            except DataError:
                self._told[0] = False
                raise

    def sizes(self) -> np.ndarray:
        """Lengths of some records, spread over all."""
        total = len(self)
        rows = np.unique(np.linspace(0, max(total - 1, 0), min(SAMPLED, total)).astype(np.int64))
        return self.locate(rows)[2]

    def read(self, rows: np.ndarray, around: int = 0) -> tuple[list[bytes], np.ndarray, np.ndarray, np.ndarray]:
        """The bytes of the rows (and `around` more at the end), their files, offsets and lengths."""
        files, offsets, lengths = self.locate(rows)
        data: list[bytes] = [b""] * len(rows)
        for file in np.unique(files):
            mine = np.flatnonzero(files == file)
            ranges = [(int(offsets[i]), int(lengths[i]) + around) for i in mine]
            for i, piece in zip(mine, self.read_ranges(int(file), ranges), strict=True):
                data[i] = piece
        return data, files, offsets, lengths

    def read_ranges(self, file: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Stretches of one file, if it still is the one that was indexed."""
        path = self.paths[file]
        with self._unchanged.reading(file, path):
            return storage.read_ranges(path, ranges)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "walk": self.walk, "_unchanged": self._unchanged}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


def place(path: str, offset: int) -> str:
    """A place in a file, in words."""
    return f"{path}, byte {offset}"


def fingerprint(paths: Sequence[str], *options: object) -> str:
    """Changes with the files, their stamps or the options."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(f"{path}|{storage.stamp(path)}|".encode("utf-8", "surrogateescape"))
    digest.update(repr(options).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def fetch_estimate(sizes: np.ndarray, rows: int) -> int:
    """Bytes of so many rows: the mean, and three deviations for the case that large ones meet."""
    if not len(sizes):
        return 0
    return int(rows * (float(sizes.mean()) + 64) + 3 * float(sizes.std()) * rows**0.5)


def entries(offsets: np.ndarray, lengths: np.ndarray, base: int = 0) -> np.ndarray:
    """Offsets and lengths packed as an index holds them."""
    packed = np.empty(len(offsets), SPAN)
    packed["offset"] = offsets
    packed["offset"] += base
    packed["length"] = lengths
    return packed


def _write(out: BinaryIO, parts: Iterator[np.ndarray]) -> None:
    """An .npy file whose length is known last: NumPy pads the header so that the length can be written again."""

    def header(count: int) -> None:
        out.seek(0)
        np.lib.format.write_array_header_2_0(
            out, {"descr": np.lib.format.dtype_to_descr(SPAN), "fortran_order": False, "shape": (count,)}
        )

    header(0)
    first, count = out.tell(), 0
    for part in parts:
        out.write(part.tobytes())
        count += len(part)
    header(count)
    if out.tell() != first:
        raise DataError("The header of an index grew; this NumPy version does not pad it.")
    out.seek(0, os.SEEK_END)


def _mapped(path: str) -> np.ndarray | None:
    """An index that is there and whole."""
    try:
        spans = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return spans if spans.dtype == SPAN and spans.ndim == 1 and len(spans) else None

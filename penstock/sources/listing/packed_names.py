"""The packed list of a dataset's files: names on disk, a few bytes a sample in memory.

Covers: writing, opening and asking the index of names and labels.
Does not cover: finding the files (sample_files.py), reading them (sources/images/source.py).

Names are kept in runs of 1,024, each padded to its longest name, so that row i is found by arithmetic: no offset, no
Python object and no search a sample. The file is mapped, never read whole:

    names, run after run | int64 offset a run | int32 width a run | labels, if any | watched paths | mtimes | JSON
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, overload

import numpy as np

from penstock.core.byte_cache import ByteCache, CachedUrl
from penstock.core.errors import DataError

RUN = 1024
MAGIC = b"penstock-paths-1"
SMALL_NBYTES = 1_000_000
"""A list no larger than this is kept in memory: a file for it would be litter."""


class PathIndex(Sequence[str]):
    """Paths and labels by row number. Picklable: by file name, or by value when small."""

    def __init__(self, file: str | bytes, cache: ByteCache | None = None) -> None:
        self._file, self._cache = file, cache
        self._load()

    def through(self, cache: ByteCache) -> PathIndex:
        """The same list, its files to be read through a cache where they are remote."""
        return PathIndex(self._file, cache)

    def _load(self) -> None:
        if isinstance(self._file, bytes):
            self._buffer: mmap.mmap | bytes = self._file
        else:
            with open(self._file, "rb") as handle:
                self._buffer = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        footer = _footer(self._buffer)
        self._rows = int(footer["rows"])
        self.root = str(footer["root"])
        self.classes: tuple[str, ...] = tuple(footer["classes"])
        self.digest = str(footer["digest"])
        self.begun_s = float(footer["begun_s"])
        self._watched = footer["watched"]
        runs = -(-self._rows // RUN)
        self._offsets = np.frombuffer(self._buffer, np.int64, runs, footer["offsets"])
        self._widths = np.frombuffer(self._buffer, np.int32, runs, footer["widths"])
        kind = footer["labels"]
        self._labels = None if kind is None else np.frombuffer(self._buffer, kind[0], self._rows, kind[1])
        self._root_bytes = os.fsencode(os.path.join(self.root, "")) if self.root else b""

    def __len__(self) -> int:
        return self._rows

    @property
    def labelled(self) -> bool:
        return self._labels is not None

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """int64, or float32 where a manifest gives numbers with fractions."""
        floating = self._labels is not None and self._labels.dtype.kind == "f"
        return np.dtype(np.float32 if floating else np.int64)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self.path(i) for i in range(*row.indices(self._rows))]
        return self.path(row + self._rows if row < 0 else row)

    def path(self, row: int) -> str:
        """The path or URL of a row."""
        if not 0 <= row < self._rows:
            raise IndexError(f"Row {row} of {self._rows}.")
        run, place = divmod(row, RUN)
        width = int(self._widths[run])
        start = int(self._offsets[run]) + place * width
        path = os.fsdecode(self._root_bytes + self._buffer[start : start + width].rstrip(b"\0"))
        return path if self._cache is None else CachedUrl(path, self._cache)

    def label(self, row: int) -> int:
        """The label of a row, as a number."""
        return self.labels(np.array([row]))[0].item()  # type: ignore[no-any-return]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """The labels of rows, as one array."""
        if self._labels is None:
            raise DataError("This list of files has no labels.")
        labels: np.ndarray = self._labels[rows].astype(self.label_dtype)
        return labels

    def watched(self) -> Iterable[tuple[str, int]]:
        """Folders that were read for this list, and when each had changed last."""
        count, start, stop, times = self._watched
        if not count:
            return
        mtimes = np.frombuffer(self._buffer, np.int64, count, times)
        for name, mtime in zip(self._buffer[start:stop].split(b"\0"), mtimes, strict=True):
            yield os.fsdecode(self._root_bytes + name), int(mtime)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole index, on disk or in memory."""
        return len(self._buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file, self._cache = state["_file"], None
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise DataError(f"The list of files {self._file!r} is gone: {error}. Make the dataset again.") from error


def _footer(buffer: mmap.mmap | bytes) -> dict[str, Any]:
    if buffer[-len(MAGIC) :] != MAGIC:
        raise ValueError("not a complete index")
    end = len(buffer) - len(MAGIC) - 8
    length = int.from_bytes(buffer[end : end + 8], "little")
    footer: dict[str, Any] = json.loads(buffer[end - length : end])
    return footer


@dataclass(frozen=True)
class FolderTimes:
    """Folders (relative to the root) whose times tell whether a list is still true."""

    names: Sequence[bytes] = ()
    mtimes_ns: Sequence[int] = ()


class IndexWriter:
    """Writes names, in the order of rows, as they come."""

    def __init__(self, file: BinaryIO) -> None:
        self.rows = 0
        self._begun_s = time.time()
        self._file = file
        self._at = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._pending: list[np.ndarray] = []
        self._pending_rows = 0
        self._offsets: list[int] = []
        self._widths: list[int] = []
        self._labels: list[np.ndarray] = []

    def add(self, names: np.ndarray, labels: np.ndarray | None = None) -> None:
        """Append names (a bytes array) and their labels."""
        self._pending.append(names)
        self._pending_rows += len(names)
        self.rows += len(names)
        if labels is not None:
            self._labels.append(labels)
        if self._pending_rows >= 64 * RUN:
            self._flush(last=False)

    def _flush(self, *, last: bool) -> None:
        if not self._pending_rows:
            return
        names = np.concatenate(self._pending)
        whole = len(names) if last else len(names) - len(names) % RUN
        lengths = np.strings.str_len(names)
        for start in range(0, whole, RUN):
            width = max(1, int(lengths[start : start + RUN].max()))
            run = names[start : min(start + RUN, whole)].astype(f"S{width}")
            self._offsets.append(self._at)
            self._widths.append(width)
            self._write(run)
        # A copy: a slice would keep the whole array.
        self._pending = [names[whole:].copy()]
        self._pending_rows = len(names) - whole

    def _write(self, array: np.ndarray) -> int:
        """Append an array, hash it, and return where it starts."""
        start = self._at
        data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
        self._digest.update(data)
        self._file.write(data)
        self._at += len(data)
        return start

    def _align(self) -> None:
        gap = -self._at % 8
        self._file.write(b"\0" * gap)
        self._at += gap

    def finish(
        self,
        *,
        root: str,
        classes: Sequence[str] = (),
        watch: FolderTimes | None = None,
        labels: np.ndarray | None = None,
    ) -> str:
        """Write the arrays and the footer; the digest of what there is to tell.

        `labels` gives all labels at once where they are known only now.
        """
        self._flush(last=True)
        self._align()
        offsets = self._write(np.array(self._offsets, np.int64))
        widths = self._write(np.array(self._widths, np.int32))
        self._align()
        joined = np.concatenate(self._labels) if self._labels else labels
        kept = None if joined is None else [joined.dtype.str, self._write(joined)]
        self._align()
        self._digest.update("\0".join(classes).encode("utf-8", "surrogateescape"))
        digest = self._digest.hexdigest()  # before the watched times: the same files are the same data
        footer = {
            "rows": self.rows, "root": root, "classes": list(classes), "digest": digest, "begun_s": self._begun_s,
            "offsets": offsets, "widths": widths, "labels": kept, "watched": self._write_watch(watch or FolderTimes()),
        }  # fmt: skip
        text = json.dumps(footer).encode()
        self._file.write(text + len(text).to_bytes(8, "little") + MAGIC)
        return digest

    def _write_watch(self, watch: FolderTimes) -> list[int]:
        blob = np.frombuffer(b"\0".join(watch.names), np.uint8)
        start = self._write(blob)
        stop = self._at
        self._align()
        return [len(watch.names), start, stop, self._write(np.array(watch.mtimes_ns, np.int64))]


def is_current(index: PathIndex) -> bool:
    """Whether every folder that was read still has the time it had, and had been quiet when it was read."""
    for folder, mtime_ns in index.watched():
        try:
            if os.stat(folder).st_mtime_ns != mtime_ns:
                return False
        except OSError:
            return False
        # A file added in the same tick of the clock leaves no trace: 50 ms cover the ticks of local file systems,
        # 2 s those that keep whole seconds.
        quiet_s = 2.0 if mtime_ns % 1_000_000_000 == 0 else 0.05
        if index.begun_s - mtime_ns / 1e9 < quiet_s:
            return False
    return True


def open_if_current(path: str) -> PathIndex | None:
    """The index kept in a file, unless it is missing, damaged or out of date."""
    try:
        index = PathIndex(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_current(index):
        return None
    os.utime(path)  # it is in use: it is not cleared as old
    return index

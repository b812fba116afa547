"""The files of a row store: runs of rows on disk, each sorted by bucket.

Covers: appending runs, the index, the journal from which an interrupted fill goes on, reading buckets, checksums.
Does not cover: what becomes a run (fill.py), the source that reads buckets (source.py), the folder and its limit
(engine/cache/folder.py).

`data` holds the runs one after the other. `index` holds for each run where its buckets begin and a checksum of each.
`journal` gets a line once a run is on the disk, which is waited for beside reading the next one. A fill that was killed
leaves at worst two runs without a line, which the next one cuts off. `complete` is written last: then it is a store.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.durable import replace_durably
from penstock.core.errors import BadData, DiskTooSmall
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.engine.cache.folder import Entry
from penstock.native.crc32c import crc32c_of_stretches

BUCKETS = 4096
"""Parts into which rows fall at random. A block is one or more of them: 32 GB make blocks of 8 MB."""

_DATA, _INDEX, _JOURNAL, _COMPLETE = "data", "index", "journal", "complete"
_PARTS_A_READ = 1024
"""Buffers that one call may fill (IOV_MAX)."""

_RECORD = np.dtype([("begins", "<u8", (BUCKETS + 1,)), ("sums", "<u4", (BUCKETS,))])


@dataclass(frozen=True)
class StoreFacts:
    """What a finished store holds."""

    rows: int
    nbytes: int
    runs: int
    stride: int
    """Bytes of a row; 0 where rows differ, and buckets are encoded blocks."""


class RunWriter:
    """Appends runs to the files of an entry, from where the journal ends."""

    def __init__(self, entry: Entry, who: str) -> None:
        self._entry, self._who = entry, who
        self.journal: list[dict[str, Any]] = _journal(entry)
        last = self.journal[-1] if self.journal else {"end": 0}
        self._end = int(last["end"])
        self._data = os.open(entry.path(_DATA), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._index = os.open(entry.path(_INDEX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._data, self._end)
        os.ftruncate(self._index, len(self.journal) * _RECORD.itemsize)
        self._settling: _Settling | None = None

    @property
    def nbytes(self) -> int:
        return self._end

    def append(self, parts: Iterable[bytes | memoryview], sizes: np.ndarray, note: dict[str, Any]) -> None:
        """One run: its bytes in order, and how many of them each bucket has. `note` goes to the journal."""
        self._settle()
        total = int(sizes.sum())
        start = self._entry.grow(self._data, total)
        line = None if start is None else self._entry.grow(self._index, _RECORD.itemsize)
        if start is None or line is None:
            raise self.refuse(self._end + total, self._end + self.free_nbytes())
        record = np.zeros((), _RECORD)
        record["begins"] = start + np.concatenate(([0], np.cumsum(sizes))).astype(np.uint64)
        at = start
        for part in parts:
            at = _pwrite(self._data, part, at)
        record["sums"] = self._sums(record["begins"])
        _pwrite(self._index, record.tobytes(), line)
        self._end = at
        self.journal.append({**note, "end": at})
        self._settling = _Settling((self._data, self._index))

    def _settle(self) -> None:
        """Wait until the last run is on the disk, and note it."""
        if self._settling is None:
            return
        settling, self._settling = self._settling, None
        settling.wait()
        with open(self._entry.path(_JOURNAL), "ab") as file:
            file.write(json.dumps(self.journal[-1]).encode() + b"\n")

    def _sums(self, begins: np.ndarray) -> np.ndarray:
        """Of what is in the file now, so that a sum also vouches for the write; some buckets at a time."""
        step = 256
        out = []
        for first in range(0, BUCKETS, step):
            bounds = begins[first : first + step + 1].astype(np.int64)
            text = np.empty(int(bounds[-1] - bounds[0]), np.uint8)
            _pread(self._data, [text.data], int(bounds[0]), self._entry.path(_DATA))
            out.append(crc32c_of_stretches(text, bounds[1:] - bounds[0]))
        return np.concatenate(out)

    def free_nbytes(self) -> int:
        """Bytes that may still be written here: by the folder's limit and by the disk."""
        return self._entry.free_nbytes()

    def finish(self, facts: StoreFacts) -> None:
        """Make the store complete."""
        self._settle()
        path = self._entry.partial(_COMPLETE)
        with open(path, "wb") as file:
            file.write(json.dumps(facts.__dict__).encode())
        replace_durably(path, self._entry.path(_COMPLETE))

    def refuse(self, needed: int, free: int) -> DiskTooSmall:
        """The error for a disk that is too small; what was written is removed."""
        self.close()
        for name in (_JOURNAL, _DATA, _INDEX):
            if os.path.exists(self._entry.path(name)):
                self._entry.discard(self._entry.path(name))
        return DiskTooSmall(who=self._who, folder=os.path.dirname(self._entry.path("")), needed=needed, free=free)

    def close(self) -> None:
        if self._settling is not None:  # its run has no line: it is written again
            self._settling.thread.join()
        self._settling = None
        if self._data >= 0:
            os.close(self._data)
            os.close(self._index)
        self._data = self._index = -1


class RunReader:
    """Reads buckets of a finished store. Thread safe: files are opened for each read."""

    def __init__(self, entry: Entry, facts: StoreFacts) -> None:
        self.entry, self.facts = entry, facts
        weakref.finalize(self, entry.close)  # it is not removed while it is read
        runs = facts.runs
        self._index = np.memmap(entry.path(_INDEX), _RECORD, "r", shape=(runs,)) if runs else np.zeros(0, _RECORD)

    def nbytes(self, low: int, high: int) -> int:
        """Bytes of buckets low..high-1."""
        begins = self._index["begins"]
        return int((begins[:, high] - begins[:, low]).sum())

    def read(self, low: int, high: int, buffers: Buffers = NEW_MEMORY) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of buckets low..high-1, by bucket and, in each, by row; and where their parts end. Checked.

        By bucket first: where runs end must not show in the order of rows.
        """
        begins = self._index["begins"][:, low : high + 1].astype(np.int64)
        sizes = np.diff(begins, axis=1).T.reshape(-1)
        ends = np.cumsum(sizes)
        buffer, runs = buffers.empty((int(ends[-1]) if len(ends) else 0,), np.uint8), len(begins)
        file = os.open(self.entry.path(_DATA), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for run in begins:
                os.posix_fadvise(file, int(run[0]), int(run[-1] - run[0]), os.POSIX_FADV_WILLNEED)
            for number, run in enumerate(begins):
                _pread(file, _views(buffer, sizes, ends, number, runs), int(run[0]), self.entry.path(_DATA))
        finally:
            os.close(file)
        wrong = np.flatnonzero(crc32c_of_stretches(buffer, ends) != self._index["sums"][:, low:high].T.reshape(-1))
        if len(wrong):
            bucket, number = divmod(int(wrong[0]), runs)
            where = f"{self.entry.path(_DATA)}, byte {int(begins[number, bucket])}"
            raise BadData(where, "the row store is damaged; remove its folder and it is written again")
        return buffer, ends


def _views(buffer: np.ndarray, sizes: np.ndarray, ends: np.ndarray, number: int, runs: int) -> list[memoryview]:
    """Where the buckets of one run belong in the buffer: side by side in the file, apart among those of other runs."""
    whole = buffer.data
    if runs == 1:
        return [whole]
    places = zip(sizes[number::runs].tolist(), ends[number::runs].tolist(), strict=True)
    return [whole[end - nbytes : end] for nbytes, end in places if nbytes]


class _Settling:
    """Waits in a thread until files are on the disk: reading goes on meanwhile."""

    def __init__(self, files: tuple[int, ...]) -> None:
        self._files = files
        self._error: OSError | None = None
        self.thread = threading.Thread(target=self._sync, name="penstock-rowstore-sync", daemon=True)
        self.thread.start()

    def _sync(self) -> None:
        try:
            for file in self._files:
                os.fdatasync(file)
        except OSError as error:
            self._error = error

    def wait(self) -> None:
        self.thread.join()
        if self._error is not None:
            raise self._error


def finished(entry: Entry) -> StoreFacts | None:
    """What the store in an entry holds, if it is complete."""
    try:
        with open(entry.path(_COMPLETE), encoding="utf-8") as file:
            return StoreFacts(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _journal(entry: Entry) -> list[dict[str, Any]]:
    """The lines that were written whole, as long as index and data have what they say."""
    try:
        with open(entry.path(_JOURNAL), "rb") as file:
            text = file.read()
        lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        there = os.path.getsize(entry.path(_DATA)), os.path.getsize(entry.path(_INDEX)) // _RECORD.itemsize
    except (OSError, ValueError):
        lines, there = [], (0, 0)
    while lines and (lines[-1]["end"] > there[0] or len(lines) > there[1]):
        lines.pop()
    with open(entry.path(_JOURNAL), "wb") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return lines


def _pwrite(file: int, data: bytes | memoryview, at: int) -> int:
    view, done = memoryview(data).cast("B"), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], at + done)
    return at + done


def _pread(file: int, out: list[memoryview], at: int, path: str) -> None:
    """Fill buffers one after the other from a place in a file on."""
    left = [view for view in out if len(view)]
    while left:
        read = os.preadv(file, left[:_PARTS_A_READ], at)
        if not read:
            raise BadData(f"{path}, byte {at}", "the row store is shorter than its index says; remove its folder")
        at += read
        full = 0
        while read and read >= len(left[full]):
            read, full = read - len(left[full]), full + 1
            if full == len(left):
                return
        left = left[full:]
        left[0] = left[0][read:]

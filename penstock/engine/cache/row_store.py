"""Where cached rows lie: in leased memory, or in files of a cache folder.

Covers: a log of bytes that only grows up to its limit, an index from row to place, checking what is read.
Does not cover: the folder that files share (folder.py), what the bytes mean (codec.py).

Nothing is ever evicted row by row: under a scan that comes round, the row used longest ago is the next one wanted, so
what came first stays. A row is in the index only after its bytes are in place, and bytes are checked when read: a
process that is killed leaves at worst some bytes that no index names.
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from typing import Protocol

import numpy as np

from penstock.core.events import events
from penstock.core.schema import Schema
from penstock.engine.cache.codec import checksums
from penstock.engine.cache.folder import Entry
from penstock.memory.budget import Budget, Lease

INDEX = np.dtype([("end", "<u8"), ("nbytes", "<u4"), ("sum", "<u4")])
"""16 bytes a row. `end` is where the row's bytes end, and 0 where there is no row yet."""

_CHUNK_NBYTES = 8_000_000
_KEPT_FREE = 1 / 3
"""Share of the data budget that a cache in memory leaves to the streams, which read faster with room to run ahead."""


class Log(Protocol):
    """Bytes, appended and read again."""

    index: np.ndarray

    def append(self, data: memoryview) -> int | None:
        """Where the bytes now end, or None if they were not taken."""

    def read_into(self, start: int, out: memoryview) -> bool:
        """Fill `out` from `start` on; False if so many bytes are not there."""

    def close(self) -> None: ...


class RowStore:
    """Rows by number, as bytes. Thread safe; with files also safe among processes."""

    def __init__(self, log: Log, label: str) -> None:
        self.log, self._label = log, label
        self._told: set[str] = set()
        self.schema: Schema | None = None  # of the rows kept, once known

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows are there."""
        found: np.ndarray = self.log.index["end"][rows] > 0
        return found

    def put(self, rows: np.ndarray, sizes: np.ndarray, data: bytes | np.ndarray) -> None:
        """Keep rows whose bytes lie one after the other in `data`, unless there is no room."""
        flat = memoryview(data).cast("B") if isinstance(data, bytes) else data.reshape(-1).data
        end = self.log.append(flat)
        if end is None:
            return
        ends = np.cumsum(sizes.astype(np.uint64))
        found = np.empty(len(rows), dtype=INDEX)
        found["end"], found["nbytes"] = ends + np.uint64(end - len(flat)), sizes
        found["sum"] = _sums(np.frombuffer(flat, dtype=np.uint8), sizes)
        index = self.log.index
        # `end` last: a reader that sees it sees the rest, and one that does not will read the row from its source.
        index["nbytes"][rows], index["sum"][rows] = found["nbytes"], found["sum"]
        index["end"][rows] = found["end"]

    def get(self, rows: np.ndarray) -> list[bytes | None]:
        """The bytes of each row, or None where they are not there or not sound."""
        places = self.log.index[rows]
        found: list[bytes | None] = []
        for row, place in zip(rows, places, strict=True):
            data = bytearray(int(place["nbytes"]))
            if place["end"] == 0:
                found.append(None)
                continue
            view = memoryview(data)
            sound = place["end"] >= len(data) and self.log.read_into(int(place["end"]) - len(data), view)
            if sound and int(checksums(np.frombuffer(data, np.uint8)[None])[0]) == place["sum"]:
                found.append(bytes(data))
            else:
                self._forget(np.array([row]))
                found.append(None)
        return found

    def get_equal(self, rows: np.ndarray, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of equal size: which are sound, and a (rows, bytes) array in which the others are left empty."""
        places = self.log.index[rows]
        out = np.empty((len(rows), nbytes), dtype=np.uint8)
        good: np.ndarray = (places["end"] >= nbytes) & (places["nbytes"] == nbytes)
        at = 0
        while at < len(rows):
            run = _run(places["end"], at, nbytes) if good[at] else 1
            if good[at]:
                read = self.log.read_into(int(places["end"][at]) - nbytes, out[at : at + run].data.cast("B"))
                good[at : at + run] &= read
            at += run
        sound = good & (checksums(out) == places["sum"])
        broken = (places["end"] > 0) & ~sound
        if broken.any():
            self._forget(rows[broken])
        return sound, out

    def _forget(self, rows: np.ndarray) -> None:
        self.log.index["end"][rows] = 0
        self.tell("cache.damaged", rows=len(rows), first=int(rows[0]))

    def tell(self, kind: str, **values: object) -> None:
        """Emit an event, once for each kind."""
        if kind not in self._told:
            self._told.add(kind)
            events.emit(kind, self._label, **values)

    def close(self) -> None:
        """Give everything back."""
        self.log.close()


def _run(ends: np.ndarray, at: int, nbytes: int) -> int:
    """How many rows from `at` on lie one after the other: they are read at once."""
    steps = np.diff(ends[at:]) == nbytes
    return len(steps) + 1 if steps.all() else int(np.argmin(steps)) + 1


def _sums(data: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    if len(sizes) and (sizes == sizes[0]).all() and sizes[0]:
        return checksums(data.reshape(len(sizes), int(sizes[0])))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.array([checksums(data[a:b][None])[0] for a, b in itertools.pairwise(starts)], dtype=np.uint32)


class RamLog:
    """Chunks of leased memory. It gives everything back when memory is short, and starts anew once it is not."""

    def __init__(self, rows: int, budget: Budget, label: str) -> None:
        self._budget, self._label = budget, label
        self._lock = threading.Lock()
        self._rows = rows
        self._leases: list[Lease] = []
        self._chunks: list[tuple[int, bytearray]] = []
        self._end = 0
        self._used = 0
        self._paused = False
        self.full = False
        self.index = np.zeros(rows, dtype=INDEX)
        self._leases.append(budget.force(self.index.nbytes, who="cache"))

    def append(self, data: memoryview) -> int | None:
        with self._lock:
            if self._paused or self.full or not self._room(len(data)):
                return None
            first, chunk = self._chunks[-1]
            chunk[self._used : self._used + len(data)] = data
            self._used += len(data)
            return first + self._used

    def _room(self, nbytes: int) -> bool:
        """A chunk with room for so many bytes, leased if need be."""
        if self._chunks and self._used + nbytes <= len(self._chunks[-1][1]):
            return True
        wanted = max(nbytes, _CHUNK_NBYTES)
        budget = self._budget
        spare = budget.free - int(budget.total * _KEPT_FREE)
        lease = budget.try_lease(wanted, who="cache") if wanted <= spare else None
        if lease is None:
            self.full = True
            events.emit("cache.full", self._label, kept_nbytes=self._end, reason="the data budget")
            return False
        self._leases.append(lease)
        self._chunks.append((self._end, bytearray(wanted)))
        self._end += wanted
        self._used = 0
        return True

    def read_into(self, start: int, out: memoryview) -> bool:
        chunks = self._chunks
        which = max(0, bisect.bisect_right(chunks, start, key=lambda chunk: chunk[0]) - 1)
        done = 0
        for first, chunk in chunks[which : which + 1 + len(out) // _CHUNK_NBYTES + 1]:  # neighbours may lie in two
            at = start + done - first
            part = memoryview(chunk)[at : at + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
        return done == len(out)  # less if it was dropped meanwhile

    def pause(self) -> None:
        """Memory is short: drop everything and take nothing for now."""
        with self._lock:
            self._paused = True
            if len(self._leases) > 1:
                events.emit("cache.dropped", self._label, nbytes=self._end)
            self.index["end"] = 0
            self._chunks, self._end, self._used = [], 0, 0
            for lease in self._leases[1:]:
                lease.close()
            del self._leases[1:]

    def go_on(self) -> None:
        """Memory is there again: keep what comes first from now on."""
        with self._lock:
            self._paused, self.full = False, False

    def close(self) -> None:
        self.pause()
        with self._lock:
            for lease in self._leases:
                lease.close()
            self._leases = []


class FileLog:
    """Two files of a cache folder's entry: the bytes, and an index that all processes map."""

    def __init__(self, entry: Entry, rows: int) -> None:
        self._entry = entry
        self.index = entry.mapped("index", rows, INDEX)
        self._file = os.open(entry.path("rows"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, data: memoryview) -> int | None:
        start = self._entry.grow(self._file, len(data))
        if start is None:
            return None
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, data[done:], start + done)
        except OSError as error:
            self._entry.give_up(error)
            return None
        return start + len(data)

    def read_into(self, start: int, out: memoryview) -> bool:
        done = 0
        while done < len(out):
            try:
                read = os.preadv(self._file, [out[done:]], start + done)
            except OSError as error:
                self._entry.give_up(error)
                return False
            if read == 0:
                return False
            done += read
        return True

    def close(self) -> None:
        os.close(self._file)
        self._entry.close()

"""Cached units: all blocks of a unit together, or nothing.

Covers: units in leased memory and as files of a cache folder, whole and checked.
Does not cover: single rows (row_store.py).
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Generator
from typing import Protocol

from penstock.core.events import events
from penstock.engine.cache.codec import checksum
from penstock.engine.cache.folder import UNIT, Entry
from penstock.memory.budget import Budget, Lease

_FRAME = struct.Struct("<QI")
_END = (1 << 64) - 1
_KEPT_FREE = 1 / 3
"""As for rows: the share of the budget that stays with the streams."""


class UnitWriter(Protocol):
    """Takes the blocks of one unit in order."""

    def add(self, data: bytes) -> bool:
        """Keep one more block; False if there is no room, and then the unit is not kept at all."""

    def commit(self) -> None:
        """All blocks were added."""

    def abandon(self) -> None:
        """Give back what was taken. After `commit` it does nothing."""


class UnitStore(Protocol):
    """Units by number."""

    def read(self, unit: int, part: int) -> Generator[bytes, None, bool]:
        """The blocks from `part` on; the generator returns True if it came to the unit's end."""

    def writer(self, unit: int) -> UnitWriter | None: ...

    def close(self) -> None: ...


class RamUnits:
    """Units in leased memory."""

    def __init__(self, budget: Budget, label: str) -> None:
        self._budget, self._label = budget, label
        self._units: dict[int, tuple[list[bytes], list[Lease]]] = {}
        self._lock = threading.Lock()
        self.writing = 0
        self._paused = False
        self.full = False

    def read(self, unit: int, part: int) -> Generator[bytes, None, bool]:
        with self._lock:
            found = self._units.get(unit)
        if found is None:
            return False
        yield from found[0][part:]
        return True

    def writer(self, unit: int) -> UnitWriter | None:
        return None if self._paused or self.full or unit in self._units else _RamWriter(self, unit)

    def lease(self, nbytes: int) -> Lease | None:
        """Room for a block, or None from the first time on that there is none."""
        budget = self._budget
        fits = nbytes <= budget.free - int(budget.total * _KEPT_FREE)
        lease = budget.try_lease(nbytes, who="cache") if fits else None
        # Of several units under way the first that finds no room gives way, so that the others may be completed.
        if lease is None and not self.full and self.writing <= 1:
            self.full = True
            events.emit("cache.full", self._label, units=len(self._units), reason="the data budget")
        return lease

    def keep(self, unit: int, blocks: list[bytes], leases: list[Lease]) -> bool:
        """A complete unit; False if it is not wanted any more."""
        with self._lock:
            if self._paused or unit in self._units:
                return False
            self._units[unit] = (blocks, leases)
            return True

    def pause(self) -> None:
        """Memory is short: drop everything and take nothing for now."""
        with self._lock:
            self._paused = True
            dropped, self._units = self._units, {}
        if dropped:
            nbytes = sum(lease.nbytes for _, leases in dropped.values() for lease in leases)
            events.emit("cache.dropped", self._label, nbytes=nbytes)
        for _, leases in dropped.values():
            for lease in leases:
                lease.close()

    def go_on(self) -> None:
        """Memory is there again."""
        self._paused, self.full = False, False

    def close(self) -> None:
        self.pause()


class _RamWriter:
    def __init__(self, store: RamUnits, unit: int) -> None:
        self._store, self._unit = store, unit
        self._blocks: list[bytes] = []
        self._leases: list[Lease] = []
        self._open = True
        store.writing += 1

    def add(self, data: bytes) -> bool:
        lease = self._store.lease(len(data))
        if lease is None:
            self.abandon()
            return False
        self._leases.append(lease)
        self._blocks.append(data)
        return True

    def commit(self) -> None:
        if self._store.keep(self._unit, self._blocks, self._leases):
            self._leases = []
        self.abandon()

    def abandon(self) -> None:
        self._store.writing -= self._open
        self._open = False
        for lease in self._leases:
            lease.close()
        self._blocks, self._leases = [], []


class FileUnits:
    """Units as files of a cache folder's entry, named when they are complete."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.writing = 0
        self._told = False

    def file(self, unit: int) -> str:
        """The name of a complete unit."""
        return self.entry.path(f"{UNIT}{unit}")

    def has(self, unit: int) -> bool:
        """Whether a unit is there, sound or not."""
        return os.path.exists(self.file(unit))

    def read(self, unit: int, part: int) -> Generator[bytes, None, bool]:
        try:
            file = os.open(self.file(unit), os.O_RDONLY | os.O_CLOEXEC)
            try:
                ended = yield from self._frames(file, part)
            finally:
                os.close(file)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.entry.give_up(error)
            return False
        if not ended:
            self._damaged(unit)
        return ended

    def _frames(self, file: int, part: int) -> Generator[bytes, None, bool]:
        status = os.fstat(file)
        _touch(file, status.st_mtime)
        at, number, length_of_file = 0, 0, status.st_size
        while True:
            head = os.pread(file, _FRAME.size, at)
            if len(head) < _FRAME.size:
                return False
            length, total = _FRAME.unpack(head)
            at += _FRAME.size
            if length == _END:
                return bool(total == number)
            if length > length_of_file:
                return False
            if number >= part:
                data = os.pread(file, length, at)
                if len(data) < length or checksum(data) != total:
                    return False
                yield data
            at, number = at + length, number + 1

    def _damaged(self, unit: int) -> None:
        """A unit that is not as it was written is removed and read again from its source."""
        if self.entry.discard(self.file(unit)) and not self._told:
            self._told = True
            events.emit("cache.damaged", self.entry.label, unit=unit)

    def writer(self, unit: int) -> UnitWriter | None:
        if self.entry.full or os.path.exists(self.file(unit)):
            return None
        try:
            return _FileWriter(self, unit)
        except OSError as error:
            self.entry.give_up(error)
            return None

    def close(self) -> None:
        self.entry.close()


def _touch(file: int, used: float) -> None:
    """Mark a unit as used: units unused for long are evicted first. Once an hour is enough."""
    if time.time() - used > 3600:
        os.utime(file)


class _FileWriter:
    def __init__(self, store: FileUnits, unit: int) -> None:
        self._store, self._unit = store, unit
        self._path = store.entry.partial(f"{unit}-{id(self)}")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._count = 0
        self._open = True
        store.writing += 1

    def add(self, data: bytes) -> bool:
        if self._write(_FRAME.pack(len(data), checksum(data)) + data):
            self._count += 1
            return True
        self.abandon()
        return False

    def _write(self, data: bytes) -> bool:
        start = self._store.entry.grow(self._file, len(data), last=self._store.writing <= 1)
        if start is None:
            return False
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, memoryview(data)[done:], start + done)
        except OSError as error:
            self._store.entry.give_up(error)
            return False
        return True

    def commit(self) -> None:
        if self._write(_FRAME.pack(_END, self._count)):
            try:
                os.link(self._path, self._store.file(self._unit))
            except OSError as error:
                if not isinstance(error, FileExistsError):  # else another process was faster, and these bytes go back
                    self._store.entry.give_up(error)
        self.abandon()

    def abandon(self) -> None:
        if not self._open:
            return
        self._open = False
        self._store.writing -= 1
        os.close(self._file)
        self._store.entry.discard(self._path)

"""A cache folder: entries of several datasets under one limit, shared by processes and runs.

Covers: admitting bytes before they are written, locks, removing stale entries, a full or unwritable disk.
Does not cover: what is in an entry's files (row_store.py, unit_store.py).

The bytes in use are the lengths of the files. A file is lengthened under the folder's lock before it is filled, so the
limit holds at every moment, and a process that is killed leaves nothing that is not counted. Locks are those of the
operating system: they end with their process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import struct
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from penstock.core.durable import replace_durably
from penstock.core.events import events
from penstock.core.sizes import size

STALE_S = 7 * 86400.0
"""An entry of other data that was not opened for so long may be evicted."""

_NOTES_NBYTES = 4096
"""Kept free below the limit for the small files that are not admitted: notes and descriptions."""

UNIT = "unit-"
"""How the names of complete units begin: a unit that is gone is read from its source again."""

_PARTIAL = "partial-"

_PLACES = 1 << 40
"""Bytes of the file in which fetches are locked; nothing is ever written to it."""


class CacheFolder:
    """The folder and its limit (None: as much as the disk holds)."""

    def __init__(self, path: str, limit: int | None) -> None:
        self.path, self.limit = os.path.abspath(os.path.expanduser(path)), limit
        self.idle_s = STALE_S
        """How long an entry must have lain idle before it makes room; with 0, the least recently opened goes first."""
        os.makedirs(self.path, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """The folder for this process alone; yields the file in which the bytes in use are noted."""
        file = os.open(os.path.join(self.path, "used"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def recount(self, note: int) -> int:
        """Bytes in use by the lengths of the files, noted anew; the lock is held."""
        used = sum(_length(entry.path) for entry in os.scandir(self.path) if entry.is_dir())
        os.pwrite(note, struct.pack("<Q", used), 0)
        return used

    def admit(self, note: int, nbytes: int, *, keep: str) -> bool:
        """Whether so many bytes more fit, after removing stale entries if need be; the lock is held."""
        used = _noted(note)
        most = 1 << 62 if self.limit is None else self.limit - _NOTES_NBYTES
        if used + nbytes > most:
            self._remove_stale(keep, used + nbytes - most)
            used = self.recount(note)
        if used + nbytes > most:
            return False
        os.pwrite(note, struct.pack("<Q", used + nbytes), 0)
        return True

    def _remove_stale(self, keep: str, wanted: int) -> None:
        """Whole entries that are not in use: older versions of the same data first, then those idle for long."""
        mine = _about(os.path.join(self.path, keep)).get("label")
        found = []
        for entry in os.scandir(self.path):
            if entry.is_dir() and entry.name != keep:
                idle_s = time.time() - _opened_s(entry.path)
                same = _about(entry.path).get("label") == mine
                if same or idle_s > self.idle_s:
                    found.append((not same, -idle_s, entry.path))
        for _, _, path in sorted(found):
            if wanted <= 0:
                return
            nbytes = _length(path)
            if _remove_idle(path):
                wanted -= nbytes
                events.emit("cache.evicted", os.path.basename(path), nbytes=nbytes)
        if wanted > 0:
            self._remove_unread()

    def evictable(self, keep: str) -> int:
        """Bytes of entries that would make room, were it needed; the lock is held."""
        idle = (e.path for e in os.scandir(self.path) if e.is_dir() and e.name != keep and _is_idle(e.path))
        return sum(_length(path) for path in idle if time.time() - _opened_s(path) > self.idle_s)

    def remove_abandoned(self, prefix: str) -> None:
        """Remove entries of processes that are gone, by the begin of their names."""
        with self.locked() as note:
            for entry in [e for e in os.scandir(self.path) if e.is_dir() and e.name.startswith(prefix)]:
                _remove_idle(entry.path)
            self.recount(note)

    def _remove_unread(self) -> None:
        """Units not read for long, of entries in use too: bytes of a bucket outlive the datasets in it.

        All of them at once: room is needed page by page, and looking through the folder once for each would be slow.
        """
        removed, before = 0, time.time() - STALE_S
        for entry in os.scandir(self.path):
            for file in os.scandir(entry.path) if entry.is_dir() else ():
                with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                    status = file.stat()
                    if file.name.startswith(UNIT) and status.st_mtime < before:
                        os.unlink(file.path)
                        removed += status.st_size
        if removed:
            events.emit("cache.evicted", os.path.basename(self.path), nbytes=removed)


class Entry:
    """One dataset's files in the folder. Open entries are not removed by others."""

    def __init__(self, folder: CacheFolder, key: str, label: str) -> None:
        self._folder, self.key, self.label = folder, key, label
        self._where = os.path.join(folder.path, key)
        self.full = False
        with folder.locked() as note:
            os.makedirs(self._where, exist_ok=True)
            self._use = os.open(self.path("use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if _alone(self._use):
                for name in os.listdir(self._where):
                    if name.startswith(_PARTIAL):
                        os.unlink(self.path(name))
            fcntl.flock(self._use, fcntl.LOCK_SH)
            about = json.dumps({"label": label}).encode()
            with open(self.path(f"{_PARTIAL}{os.getpid()}"), "wb") as file:
                file.write(about)
            replace_durably(self.path(f"{_PARTIAL}{os.getpid()}"), self.path("about.json"))
            folder.recount(note)

    def path(self, name: str) -> str:
        """A file of this entry."""
        return os.path.join(self._where, name)

    def partial(self, name: str) -> str:
        """A file of this entry that is not complete: removed by the next user if this one dies."""
        return self.path(f"{_PARTIAL}{os.getpid()}-{name}")

    @contextlib.contextmanager
    def fetching(self, numbers: Iterable[int]) -> Iterator[None]:
        """The right to fetch units, which one thread of all processes has at a time: the others find them kept then.

        Every unit is a byte that is locked, always in the same order, so that no two processes wait for each other.
        Nothing is locked where nothing can be kept, or where the system has no such locks.
        """
        file = None if self.full else self._open_locked(sorted({number % _PLACES for number in numbers}))
        try:
            yield
        finally:
            if file is not None:
                os.close(file)

    def _open_locked(self, places: Sequence[int]) -> int | None:
        command = getattr(fcntl, "F_OFD_SETLKW", None)  # of a descriptor, not of a process: threads too
        if command is None:
            return None
        file = os.open(self.path("fetching"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for place in places:
                fcntl.fcntl(file, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
        except OSError as error:  # a file system without locks: bytes may be fetched more than once
            os.close(file)
            events.emit("cache.unlocked", self.label, reason=error.strerror or str(error))
            return None
        return file

    def mapped(self, name: str, count: int, dtype: np.dtype) -> np.ndarray:
        """An array in a file, zero at first, that all processes share."""
        path = self.path(name)
        nbytes = max(1, count * dtype.itemsize)
        with self._folder.locked() as note:
            there = os.path.getsize(path) if os.path.exists(path) else 0
            if there != nbytes:
                for stale in (path, self.path("rows")):
                    if os.path.exists(stale):
                        os.unlink(stale)
                self._folder.recount(note)
                if not self._folder.admit(note, nbytes, keep=self.key):
                    raise OSError(errno.EDQUOT, f"the limit of {size(self._folder.limit or 0)} is used up")
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, nbytes)
        return np.memmap(path, dtype=dtype, mode="r+", shape=(count,)) if count else np.zeros(0, dtype)

    def grow(self, file: int, nbytes: int, *, last: bool = True) -> int | None:
        """Lengthen a file by so many bytes, if the limit allows; where they start.

        With `last=False` a refusal is not for good: another writer may finish in the room that this one leaves.
        """
        if self.full:
            return None
        try:
            with self._folder.locked() as note:
                if not self._folder.admit(note, nbytes, keep=self.key):
                    if last:
                        self._tell_full(f"the limit of {size(self._folder.limit or 0)}")
                    return None
                start = os.fstat(file).st_size
                os.ftruncate(file, start + nbytes)
                return start
        except OSError as error:
            self.give_up(error)
            return None

    def free_nbytes(self) -> int:
        """Bytes that may still be added: below the folder's limit, and on the disk."""
        disk = shutil.disk_usage(self._where).free
        if self._folder.limit is None:
            return disk
        with self._folder.locked() as note:
            used, idle = self._folder.recount(note), self._folder.evictable(self.key)
        return min(disk + idle, self._folder.limit - _NOTES_NBYTES - used + idle)

    def discard(self, path: str) -> bool:
        """Remove a file and give its bytes back, unless it has another name that holds them; False if it was gone.

        Both under the lock: were the bytes counted anew in between, they would be given back twice.
        """
        with self._folder.locked() as note:
            try:
                status = os.stat(path)
                os.unlink(path)
            except FileNotFoundError:
                return False
            if status.st_nlink == 1:
                os.pwrite(note, struct.pack("<Q", max(0, _noted(note) - status.st_size)), 0)
            return True

    def give_up(self, error: OSError) -> None:
        """The disk is full or gone: what is there stays in use, nothing is added any more."""
        self._tell_full(error.strerror or str(error))

    def _tell_full(self, reason: str) -> None:
        if not self.full:
            self.full = True
            events.emit("cache.full", self.label, reason=reason, folder=self._folder.path)

    def close(self) -> None:
        """Others may remove the entry from now on."""
        os.close(self._use)


def _noted(note: int) -> int:
    data = os.pread(note, 8, 0)
    return int(struct.unpack("<Q", data)[0]) if len(data) == 8 else 0


def _alone(use: int) -> bool:
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_idle(path: str) -> bool:
    """Whether no process has an entry open."""
    use = os.open(os.path.join(path, "use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        return _alone(use)
    finally:
        os.close(use)


def _remove_idle(path: str) -> bool:
    """Remove an entry unless a process has it open."""
    use = os.open(os.path.join(path, "use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _alone(use):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(use)


def _length(path: str) -> int:
    """Bytes of an entry's files; one that has two names, as between two steps of a commit, counts once."""
    total = 0
    seen: set[int] = set()
    for entry in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # another process has just renamed or removed it
            status = entry.stat()
            if status.st_nlink > 1 and status.st_ino in seen:
                continue
            seen.update([status.st_ino] if status.st_nlink > 1 else [])
            total += status.st_size
    return total


def _about(path: str) -> dict[str, str]:
    try:
        with open(os.path.join(path, "about.json"), encoding="utf-8") as file:
            found: dict[str, str] = json.load(file)
            return found
    except (OSError, ValueError):
        return {}


def _opened_s(path: str) -> float:
    try:
        return os.stat(os.path.join(path, "about.json")).st_mtime
    except OSError:
        return 0.0

"""Noticing files that change while a dataset reads them.

Covers: what a file was when it was first looked at (size, time of change, inode; a store's tag), and comparing.
Does not cover: when to compare (every source does before and after it reads a unit), resuming on other data
(fingerprints).

Byte ranges, row groups and addresses are only right for the file that they were made for. A file that is replaced
between epochs would lose rows without a word, and one that shrinks would be waited for.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np

from penstock.core.errors import FileChanged, NotFound
from penstock.sources.storage import remote
from penstock.sources.storage.files import explained, is_remote, local_path

_KNOWN = np.dtype([("nbytes", "<i8"), ("time", "<u4"), ("place", "<u4")])
"""16 bytes a file: its size, and checksums of its time of change and of its inode."""

MISSING = (-1, 0, 2)
"""A file that is not there: places are odd otherwise."""


class Unchanged:
    """What the files of one dataset were at first sight, by number. It travels with the dataset.

    `count` is how many there are, where that is known: room for all is taken at once, at the first look.
    """

    def __init__(self, count: int = 0) -> None:
        self._known, self._count = np.zeros(0, _KNOWN), count
        self._lock = threading.Lock()

    def check(self, number: int, path: str, *, may_be_missing: bool = False, may_be_written: bool = False) -> int:
        """Bytes of a file; raises `FileChanged` if it is not what it was at first sight.

        One that `may_be_missing` has to stay missing, or to stay (in a remote store: to stay). One that
        `may_be_written` is only ever replaced against the rules.
        """
        if number >= len(self._known):
            self._grow(number + 1)
        was = self._known[number]
        if was.item() == MISSING and is_remote(path):
            return -1  # asked once: a store would be asked again for every unit, and never say anything new
        try:
            now = _identity(path, fresh=not was["place"])
        except NotFound:
            if not may_be_missing:
                raise
            now = MISSING
        if not was["place"]:
            self._known[number] = now
        elif was["place"] != now[2] or (was.item() != now and not may_be_written):
            raise FileChanged(path, _difference(was, now))
        return now[0]

    def _grow(self, count: int) -> None:
        with self._lock:
            if count > len(self._known):
                known = np.zeros(max(count, self._count, 2 * len(self._known)), _KNOWN)
                known[: len(self._known)] = self._known
                self._known = known

    def __getstate__(self) -> dict[str, Any]:
        return {"_known": self._known, "_count": self._count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, number: int, path: str) -> Iterator[None]:
        """A block that reads a file: checked before it, and again before what was read is used."""
        self.check(number, path)
        yield
        self.check(number, path)


def _identity(path: str, *, fresh: bool) -> tuple[int, int, int]:
    """Size, time and place as numbers; the last is never 0."""
    if is_remote(path):
        nbytes, tag = remote.recent_identity(path, fresh=fresh)
        return nbytes, _sum(tag), 1
    with explained(path):
        status = os.stat(local_path(path))
    place = 0 if _inodes_wander(status.st_dev) else status.st_ino
    return status.st_size, _sum(status.st_mtime_ns), _sum(place) | 1


def _sum(value: Any) -> int:
    return crc32(repr(value).encode())


@functools.lru_cache(maxsize=64)
def _inodes_wander(device: int) -> bool:
    """Whether a file may have another inode number tomorrow: file systems in user space forget theirs."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return False
    kinds = [line[line.index("-") + 1] for line in lines if line[2] == wanted and "-" in line]
    return any(kind.startswith("fuse") for kind in kinds)


def _difference(was: Any, now: tuple[int, int, int]) -> str:
    if now == MISSING or was.item() == MISSING:
        return "it was there and is gone now" if now == MISSING else "it was missing and is there now"
    if int(was["nbytes"]) != now[0]:
        return f"it had {int(was['nbytes'])} bytes and has {now[0]} now"
    if int(was["place"]) != now[2]:
        return "another file of the same size has taken its place"
    return "it was written to, and kept its size"

"""A very cheap look at memory between two samples.

Covers: one number of one open file, so that a jump is noticed within hundredths of a second.
Does not cover: samples (sample.py), which cost a hundred times as much.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from penstock.memory.cgroups import Cgroup

TICK_S = 0.02
JUMP = 0.02
"""Share of the limit that calls for a sample at once."""


class Tripwire:
    """Watches a memory group, or the main process where there is no group of its own."""

    def __init__(self, limit: int, group: Cgroup | None) -> None:
        self._jump, self._group = int(JUMP * limit), group
        self._file, self._last = -1, 0

    def watch(self, pid: int) -> None:
        """Begin; `pid` is the main process."""
        if self._group is None:
            path = Path(f"/proc/{pid}/statm")
        else:
            path = self._group.path / ("memory.usage_in_bytes" if self._group.version == 1 else "memory.current")
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it is gone already
            return
        self._last = self._read()

    def moved(self) -> bool:
        """Whether memory has jumped since it last had."""
        if self._file < 0:
            return False
        now = self._read()
        if abs(now - self._last) < self._jump:
            return False
        self._last = now
        return True

    def _read(self) -> int:
        try:
            words = os.pread(self._file, 128, 0).split()
        except OSError:
            return self._last
        if not words:
            return self._last
        return int(words[0]) if self._group is not None else int(words[1]) * mmap.PAGESIZE

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

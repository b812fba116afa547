"""Blocks of a source that are in memory, so that reading ahead can wait until earlier ones are let go.

Covers: counting blocks that are under way and those in use, and whether one more may be read.
Does not cover: starting reads (engine/streams/units.py), leases (memory/budget.py).

While the last rows of a window are gathered, the next window is there already. Reading for the one after it at that
moment would take the memory of a third window, for the few milliseconds until the first is let go.
"""

from __future__ import annotations

import weakref

from penstock.engine.buffers.leased_rows import Hold


class BlocksInUse:
    """What one source gave to one run, whatever the epoch: the end of one and the start of the next meet."""

    def __init__(self) -> None:
        self.window = 0
        """The most blocks that a window took so far; 0 where blocks are not gathered in windows."""
        self._there: weakref.WeakSet[Hold] = weakref.WeakSet()
        self._in_use: weakref.WeakSet[Hold] = weakref.WeakSet()

    def begin(self, hold: Hold) -> None:
        """Count a block that is read from now on, until its hold is gone."""
        self._there.add(hold)

    def give(self, hold: Hold) -> None:
        """The block is no longer ahead, but in use."""
        self._in_use.add(hold)

    def full(self, wanted: int, ahead: int) -> bool:
        """Whether there is as much as is `wanted` at once, and as may be `ahead` of a window that has its room."""
        in_use = len(self._in_use)
        return bool(self.window) and len(self._there) - in_use >= (wanted if in_use > self.window else ahead)

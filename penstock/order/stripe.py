"""Which part of an order belongs to which rank, also after the number of ranks has changed.

Covers: local counters to global places and back.
Does not cover: merging the positions of several ranks (position.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stripe:
    """Rank `rank` of `world` owns the global places start + rank, start + rank + world, ... below `stop`."""

    rank: int = 0
    world: int = 1
    start: int = 0
    stop: int | None = None

    def place(self, local: int) -> int:
        """The global place of a local counter."""
        return self.start + local * self.world + self.rank

    def places(self, first: int, last: int) -> np.ndarray:
        """Global places of local counters first..last-1."""
        return np.arange(first, last, dtype=np.int64) * self.world + (self.start + self.rank)

    def count(self, total: int) -> int:
        """How many places below `total` this rank owns."""
        end = total if self.stop is None else min(total, self.stop)
        return max(0, -(-(end - self.start - self.rank) // self.world))

    def reached(self, local: int) -> int:
        """The global place up to which all ranks are done when each has done `local`."""
        return self.start + local * self.world

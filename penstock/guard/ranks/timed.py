"""How long a rank waits for the others, and that one of them is gone.

Covers: measuring the votes of any engine; one error for all that engines raise where a sum cannot end.
Does not cover: the votes themselves (torch.py, jax.py).

A vote is a few bytes: what it takes is the time until the last rank is there. Sums of gradients come right after a vote
and are not counted, since they take their time on the network too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.errors import PenstockError
from penstock.core.world import RanksLost
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.classify import classify

_Found = TypeVar("_Found")


class TimedRanks:
    """Other ranks, with a clock: `waited_s` is the time spent in votes so far."""

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.perf_counter) -> None:
        self._ranks, self._clock = ranks, clock
        self.rank, self.size = ranks.rank, ranks.size
        self.waited_s = 0.0

    def totals(self, *values: float) -> tuple[float, ...]:
        return self._timed(lambda: self._ranks.totals(*values))

    def any(self, flag: bool) -> bool:
        return self._timed(lambda: self._ranks.any(flag))

    def smallest(self, value: int) -> int:
        return self._timed(lambda: self._ranks.smallest(value))

    def gather(self, value: Any) -> list[Any]:
        return self._timed(lambda: self._ranks.gather(value))

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        return self._told(lambda: self._ranks.add(arrays, share))

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        return self._told(lambda: self._ranks.from_first(arrays))

    def _timed(self, vote: Callable[[], _Found]) -> _Found:
        began_s = self._clock()
        try:
            return self._told(vote)
        finally:
            self.waited_s += self._clock() - began_s

    def _told(self, sum_up: Callable[[], _Found]) -> _Found:
        """The sum, or `RanksLost`: engines have no type of their own for it."""
        try:
            return sum_up()
        except RuntimeError as error:
            if isinstance(error, PenstockError) or classify(error) is not None:
                raise
            raise RanksLost(f"Rank {self.rank} of {self.size} lost the others in a sum: {error}") from error

"""A rank in a sum: how long it waits, and what it says when the sum cannot end."""

from __future__ import annotations

import pytest

from penstock.core.errors import OutOfMemory
from penstock.core.world import RanksLost
from penstock.guard.ranks.agree import OneRank
from penstock.guard.ranks.timed import TimedRanks


class Torn(OneRank):
    """Ranks of which one fails in its next vote."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def totals(self, *values: float) -> tuple[float, ...]:
        raise self._error


def test_a_sum_that_breaks_says_that_the_others_are_gone() -> None:
    with pytest.raises(RanksLost, match=r"Rank 0 of 1 lost the others in a sum: .*reset by peer"):
        TimedRanks(Torn(RuntimeError("Read error: Connection reset by peer"))).totals(1.0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        OutOfMemory("no", phase="apply", micro=1),
    ],
)
def test_a_lack_of_memory_in_a_sum_stays_one(error: Exception) -> None:
    with pytest.raises(type(error)) as found:
        TimedRanks(Torn(error)).totals(1.0)
    assert not isinstance(found.value, RanksLost)


def test_only_votes_count_as_waiting() -> None:
    ticks = iter(range(100))
    ranks = TimedRanks(OneRank(), clock=lambda: float(next(ticks)))
    ranks.add([], 1.0)
    assert ranks.waited_s == 0.0
    assert ranks.totals(2.0) == (2.0,) and ranks.waited_s == 1.0

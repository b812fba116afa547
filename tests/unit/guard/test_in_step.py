"""Ranks with different numbers of batches, in threads that meet at a barrier as processes meet in a sum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.core.errors import BadData, InvalidInput
from penstock.core.world import WorldError
from penstock.guard.ranks.agree import OneRank
from penstock.guard.ranks.in_step import NO_ROWS, InStep


class Meeting:
    """Sums that end when all ranks have come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.given: dict[int, tuple[float, ...]] = {}

    def rank(self, rank: int) -> Any:
        meeting = self

        class Member(OneRank):
            def totals(self, *values: float) -> tuple[float, ...]:
                meeting.given[rank] = values
                meeting.barrier.wait()
                found = tuple(sum(column) for column in zip(*meeting.given.values(), strict=True))
                meeting.barrier.wait()
                return found

        member = Member()
        member.rank, member.size = rank, self.size
        return member


def together(size: int, work: Callable[[Any], Any]) -> list[Any]:
    meeting, found = Meeting(size), [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(meeting.rank(rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_padding_gives_every_rank_as_many_steps_and_every_batch_once() -> None:
    lengths = [3, 1, 0]
    found = together(3, lambda r: list(InStep(iter([(r.rank, n) for n in range(lengths[r.rank])]), r, "pad")))
    assert [len(steps) for steps in found] == [3, 3, 3]
    assert [[s for s in steps if s is not NO_ROWS] for steps in found] == [[(0, 0), (0, 1), (0, 2)], [(1, 0)], []]


def test_dropping_stops_all_with_the_shortest() -> None:
    lengths = [5, 2, 4]
    found = together(3, lambda r: list(InStep(iter(range(lengths[r.rank])), r, "drop")))
    assert found == [[0, 1]] * 3


def test_a_rank_that_cannot_read_on_stops_all_of_them() -> None:
    def batches(rank: int) -> Iterator[int]:
        yield 0
        if rank == 1:
            raise BadData("part-1.csv: row 7", "not a number")
        yield 1

    found = together(3, lambda r: list(InStep(batches(r.rank), r, "pad")))
    assert isinstance(found[1], BadData)
    assert all(isinstance(found[rank], WorldError) for rank in (0, 2))
    assert "at step 1;" in str(found[0])


def test_a_wish_of_one_rank_is_granted_to_all() -> None:
    def work(r: Any) -> list[tuple[bool, ...]]:
        steps = InStep(iter(range(3)), r, "pad", lambda: (r.rank == 2, False))
        return [steps.granted for _ in steps]

    assert together(3, work) == [[(True, False)] * 3] * 3


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'pad' or 'drop', not 'skip'"):
        InStep(iter([]), OneRank(), "skip")  # type: ignore[arg-type]

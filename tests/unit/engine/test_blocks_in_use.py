"""Reading ahead waits until a window is let go, but for a block a thread: a run never holds three.

Blocks of a remote store are fetched a window ahead, and what is there goes on to the consumer meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.core.block import Block
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.dataset import Dataset
from penstock.engine.buffers.blocks_in_use import BlocksInUse
from penstock.engine.buffers.leased_rows import Hold
from penstock.engine.streams.stream import ReadAhead
from tests.contract.chains import units
from tests.stand_ins import NumberUnits

UNITS, ROWS, WINDOW, AHEAD = 40, 10_000, 8, 6


def test_full_means_as_many_ahead_as_are_wanted() -> None:
    out, used, read = BlocksInUse(), [Hold() for _ in range(4)], [Hold() for _ in range(2)]
    for hold in (*used, *read):
        out.begin(hold)
    for hold in used:
        out.give(hold)
    assert not out.full(wanted=0, ahead=1), "without windows nobody waits"
    out.window = 3
    assert out.full(wanted=2, ahead=3), "four in use: only what is wanted now is read"
    assert not out.full(wanted=3, ahead=3)
    used.pop()
    del hold
    assert not out.full(wanted=0, ahead=3), "one window in use: the usual number is read ahead"
    assert out.full(wanted=0, ahead=2)
    read.clear()
    assert not out.full(wanted=0, ahead=1)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_run_holds_two_windows_and_a_block_a_thread_at_most(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    there: list[int] = []
    begin = BlocksInUse.begin

    def counted(self: BlocksInUse, hold: Hold) -> None:
        begin(self, hold)
        there.append(len(self._there))

    monkeypatch.setattr(BlocksInUse, "begin", counted)
    monkeypatch.setattr(ReadAhead, "jobs", lambda self, threads, parts=1: AHEAD)
    ds = units((ROWS,) * UNITS, part_rows=ROWS).shuffle(seed=1, window=ROWS * WINDOW).batch(100)
    rows = sum(len(batch) for batch in ds.repeat(epochs))
    assert rows == ROWS * UNITS * epochs
    threads = len(os.sched_getaffinity(0))
    assert WINDOW < max(there) <= 2 * WINDOW + 1 + threads, "the block that is waited for, and one for each thread"


@pytest.mark.real_time
@pytest.mark.parametrize(("remote", "ahead"), [(True, 8), (False, 3)])
def test_while_a_window_of_a_store_is_used_the_next_one_is_fetched_whole(
    monkeypatch: pytest.MonkeyPatch, remote: bool, ahead: int
) -> None:
    monkeypatch.setattr(ReadAhead, "jobs", lambda self, threads, parts=1: 3)
    source = NumberUnits((ROWS,) * UNITS, ROWS)
    source.one_block = lambda unit: True  # type: ignore[attr-defined]
    source.remote = remote  # type: ignore[attr-defined]
    with iter(Dataset.of(source).shuffle(seed=1, window=ROWS * WINDOW).batch(100)) as batches:
        for _ in range(250):  # of 800 of the first window; as many wait in groups of 64
            next(batches)
            time.sleep(0.002)
        assert len(source.opened) == WINDOW + ahead


@pytest.mark.real_time
def test_rows_that_are_there_do_not_wait_for_a_block_of_the_next_window() -> None:
    slow, late = threading.Event(), threading.Event()

    class Stuck(NumberUnits):
        """The last block that is read of eight does not come."""

        def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
            if len(self.opened) == 7 and not slow.wait(20):
                late.set()
            yield from super().open(unit, part, buffers)

    source = Stuck((100_000,) * 8, 100_000)
    source.one_block = lambda unit: True  # type: ignore[attr-defined]
    source.remote = True  # type: ignore[attr-defined]
    with iter(Dataset.of(source).shuffle(seed=1, window=400_000).batch(10_000)) as batches:
        try:
            first = [
                next(batches) for _ in range(36)
            ]  # batches are made 12 at a time: the next ones have other rows too
        finally:
            slow.set()
        assert not late.is_set()
        assert sum(map(len, first)) == 360_000
        assert sum(map(len, batches)) == 440_000

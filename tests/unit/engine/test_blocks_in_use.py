"""Reading ahead waits until a window is let go, but for a block a thread: a run never holds three."""

from __future__ import annotations

import os

import pytest

from penstock.engine.buffers.blocks_in_use import BlocksInUse
from penstock.engine.buffers.leased_rows import Hold
from penstock.engine.streams.stream import ReadAhead
from tests.contract.chains import units

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

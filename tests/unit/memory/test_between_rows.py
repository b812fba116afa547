"""Loops look after memory on their way: only when it is due, and not on after a verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.core.errors import Stopped
from penstock.memory.between_rows import check_memory, set_watchdog
from penstock.memory.budget import Budget
from penstock.memory.meter import Meter
from penstock.memory.watchdog import MIN_DATA_NBYTES, Watchdog
from tests.stand_ins import fresh_pages

MB = 10**6


class Watch:
    gave_up = False

    def __init__(self) -> None:
        self.due_s, self.looks = time.monotonic() + 3600, 0

    def look(self) -> None:
        self.looks += 1


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    set_watchdog(found)
    yield found
    set_watchdog(None)


def test_nothing_is_done_before_it_is_due(watch: Watch) -> None:
    check_memory()
    assert watch.looks == 0
    watch.due_s = 0.0
    check_memory()
    assert watch.looks == 1
    watch.gave_up = True
    with pytest.raises(Stopped, match="memory ran out"):
        check_memory()


@pytest.mark.real_time
def test_whoever_passes_by_samples_alone_if_the_thread_gets_no_turn() -> None:
    """A watchdog that was never started, and a loop that fills memory up to a limit: it gets its verdict in time."""
    start, said = Meter().read().nbytes, []
    limit = start + 400 * MB
    watchdog = Watchdog(Budget(MIN_DATA_NBYTES), limit, Meter(), give_up=said.append, every_s=0.01)
    watchdog.sample()
    set_watchdog(watchdog)
    kept = []
    try:
        with pytest.raises(Stopped):
            while len(kept) < 500:
                kept.append(fresh_pages(MB))
                time.sleep(0.001)
                check_memory()
    finally:
        set_watchdog(None)
    taken = sum(map(len, kept))
    for pages in kept:
        pages.close()
    assert taken < 400 * MB and start + taken >= 0.85 * limit
    assert len(said) == 1 and "nothing is left to give way" in said[0]


def test_a_glance_sees_what_a_reading_sees() -> None:
    meter = Meter()
    before = meter.read().nbytes
    with fresh_pages(40 * MB):
        assert meter.glance() - before >= 39 * MB
    assert abs(meter.glance() - meter.read().nbytes) < 2 * MB


def test_many_threads_pass_by_one_watchdog() -> None:
    watchdog = Watchdog(Budget(MIN_DATA_NBYTES), 10**12, Meter(), every_s=0.001)
    set_watchdog(watchdog)
    try:
        threads = [threading.Thread(target=lambda: [check_memory() for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        set_watchdog(None)
    assert not watchdog.gave_up

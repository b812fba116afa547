"""Progress: waits are measured around the next batch, reports are rare, counts are exact."""

from __future__ import annotations

import weakref

import pytest

from penstock.guard.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Slow:
    """Each batch takes `wait` seconds to come."""

    def __init__(self, clock, waits):
        self.clock, self.waits = clock, waits

    def __iter__(self):
        for wait in self.waits:
            self.clock.now += wait
            yield wait


def test_share_of_time_waited_and_rate():
    clock = Clock()
    progress = Progress(clock=clock)
    dues = []
    for _ in progress.timed(Slow(clock, [0.1, 0.1, 0.1])):
        clock.now += 0.3  # the step itself
        dues.append(progress.step(8))
    found = progress.since()
    assert dues == [True] * 3  # nobody took the report that was due after the first step
    assert progress.samples == found.samples == 24
    assert found.waited_s == pytest.approx(0.3) == progress.waited_s
    assert found.waited_share == pytest.approx(0.25)
    assert found.samples_per_s == pytest.approx(20)


def test_at_most_two_reports_a_second():
    clock = Clock()
    progress = Progress(clock=clock)
    reports = 0
    for _ in range(1000):
        clock.now += 0.01
        if progress.step(1):
            progress.since()
            reports += 1
    assert reports == 20  # ten seconds; the first step is told at once


def test_an_epoch_has_its_own_count_and_a_resumed_run_goes_on():
    clock = Clock()
    progress = Progress(samples=50, clock=clock)
    progress.begin_epoch()
    progress.step(4)
    clock.now += 2
    assert progress.end_epoch() == (2, 4)
    assert progress.samples == 54


def test_a_batch_is_not_held_while_the_next_is_made():
    class Batch:
        pass

    seen = []

    def batches():
        for _ in range(3):
            assert all(ref() is None for ref in seen)
            batch = Batch()
            seen.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in Progress().timed(batches()):
        del batch
    assert len(seen) == 3

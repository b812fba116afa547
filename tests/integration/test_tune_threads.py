"""The tuner in front of a real slow storage, and of work that only computes."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

from penstock.core.events import events
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.dataset import Dataset
from tests.stand_ins import NumberRows


class SlowRows(NumberRows):
    """Every fetch takes a while, as from a far storage."""

    def __init__(self, rows: int, latency_s: float) -> None:
        super().__init__(rows)
        self._latency_s = latency_s

    def fetch(self, rows: np.ndarray) -> Any:
        time.sleep(self._latency_s)
        return rows


class ComputedRows(NumberRows):
    """Every decode computes without the interpreter lock."""

    def decode_into(self, fetched: Any, out: Any, buffers: Buffers = NEW_MEMORY) -> None:
        data = np.random.default_rng(0).random(100_000)
        for _ in range(20):
            np.sqrt(data, out=data)
        out["value"][:] = fetched


@pytest.fixture
def told():
    found = []
    remove = events.listen(found.append)
    yield lambda: [event for event in found if event.kind == "tune.threads"]
    remove()


def test_more_threads_wait_for_a_slow_storage_and_throughput_rises_in_the_same_run(told):
    # Each batch is one fetch of 30 ms: with as many threads as cores, this is the rate at the start.
    first_rate, best_rate = len(os.sched_getaffinity(0)) / 0.03, 0.0
    seen: list[float] = []
    with iter(Dataset.of(SlowRows(64 * 100_000, 0.03)).batch(64)) as once:
        for batch in once:
            np.testing.assert_array_equal(batch, np.arange(len(seen) * 64, len(seen) * 64 + 64))
            seen.append(time.perf_counter())
            if len(seen) > 100:
                best_rate = max(best_rate, 100 / (seen[-1] - seen[-101]))
            if best_rate > 4 * first_rate or seen[-1] - seen[0] > 20:
                break
    assert best_rate > 2.5 * first_rate
    widths = [event.values["threads"] for event in told()]
    assert max(widths) >= 3 * len(os.sched_getaffinity(0))
    assert all(event.values["why"] for event in told())


def test_computing_stays_at_the_number_of_cores(told):
    cores = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    for _ in Dataset.of(ComputedRows(8 * 3000)).batch(8):
        if time.perf_counter() - began > 4:
            break
    kept = [event.values["threads"] for event in told() if "throughput with" in event.values["why"]]
    assert all(threads <= cores for threads in kept)

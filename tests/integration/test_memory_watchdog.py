"""The watchdog against real memory: data gives way to a model, comes back, and a job lives that would have died."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from penstock.core.events import Event, events
from penstock.memory.budget import Budget
from penstock.memory.jail import limited_group, run_limited
from penstock.memory.meter import Meter
from penstock.memory.watchdog import Rules, Watchdog, plan_budget

MB = 1_000_000
JOB = """
import mmap, sys, threading, time
import numpy as np
from penstock.memory import Budget, Meter, Watchdog, find_limit, plan_budget
from penstock.memory.watchdog import Rules

limit = find_limit().nbytes
budget = Budget(plan_budget(limit, Meter().read().nbytes, reserve=40_000_000))
if sys.argv[1] == "watched":
    Watchdog(budget, limit, Meter(), reserve=40_000_000, every_s=0.01, rules=Rules(grow_samples=1000)).start()
stopping = threading.Event()

def read():
    while not stopping.is_set():
        with budget.lease(4_000_000, who="reader") as lease:
            data = mmap.mmap(-1, 4_000_000)  # goes back to the kernel at once, whatever the allocator does
            with lease.filling():
                np.frombuffer(data, np.uint8).fill(1)
            time.sleep(0.1)
            data.close()

readers = [threading.Thread(target=read) for _ in range(60)]
for reader in readers:
    reader.start()
time.sleep(0.5)
model = []
for _ in range(25):
    model.append(np.ones(4_000_000, np.uint8))
    time.sleep(0.1)
stopping.set()
for reader in readers:
    reader.join()
print(budget.total)
"""


def can_make_groups() -> bool:
    with limited_group(100 * MB) as group:
        return group is not None


def test_data_gives_way_to_a_model_and_comes_back() -> None:
    moved = threading.Event()
    totals: list[int] = []

    def listen(event: Event) -> None:
        if event.kind == "watchdog.budget":
            totals.append(event.values["total"])
            moved.set()

    meter = Meter()
    used = meter.read().nbytes
    limit = used + 500 * MB
    budget = Budget(plan_budget(limit, used, reserve=100 * MB))
    assert budget.total == 400 * MB
    watchdog = Watchdog(budget, limit, meter, reserve=100 * MB, every_s=0.01, rules=Rules(grow_samples=5))
    remove = events.listen(listen)
    watchdog.start()
    try:
        with budget.lease(50 * MB, who="window"):
            data = np.ones(50 * MB, np.uint8)  # data under a lease does not push data out
            assert not moved.wait(0.3)
            model = np.ones(200 * MB, np.uint8)
            while budget.total > 220 * MB:
                assert moved.wait(30)
                moved.clear()
            assert budget.total == pytest.approx(200 * MB, abs=20 * MB)
            shrunk = len(totals)
            del model
            while budget.total < 370 * MB:
                assert moved.wait(30)
                moved.clear()
            del data
    finally:
        watchdog.stop()
        remove()
    growth = totals[shrunk:]
    assert growth == sorted(growth)
    assert len(growth) >= 2  # in steps, not at once


@pytest.mark.skipif(not can_make_groups(), reason="memory cgroups cannot be made here")
def test_a_job_whose_model_grows_lives_with_the_watchdog_and_dies_without() -> None:
    watched = run_limited([sys.executable, "-c", JOB, "watched"], 230 * MB, capture=True, timeout_s=60)
    assert (watched.returncode, watched.killed) == (0, False), watched
    assert watched.stdout is not None
    assert 32 * MB <= int(watched.stdout) < 120 * MB
    alone = run_limited([sys.executable, "-c", JOB, "alone"], 230 * MB, capture=True, timeout_s=60)
    assert (alone.returncode, alone.killed) == (-9, True), alone

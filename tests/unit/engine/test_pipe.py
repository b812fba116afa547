"""The ladder that running streams hand to the watchdog."""

from __future__ import annotations

import gc

from penstock.engine.pipe import Pipe
from penstock.memory.budget import Budget


def test_leases_in_a_reference_cycle_come_back_when_memory_is_short():
    budget = Budget(100)
    knot: list[object] = [budget.lease(60, who="a batch in a traceback")]
    knot.append(knot)
    gc.disable()  # as good as: Python collects when objects are made, and who waits for memory makes none
    try:
        del knot
        assert budget.used == 60
        [rung] = [rung for rung in Pipe()._ladder() if rung.name == "garbage"]
        rung.down()
        assert budget.used == 0 and rung.frees_data
    finally:
        gc.enable()

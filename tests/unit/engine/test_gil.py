"""The probe tells a Python loop from work that lets other threads run."""

from __future__ import annotations

import time

import numpy as np
import pytest

from penstock.engine.workers.gil_probe import GilProbe

pytestmark = pytest.mark.real_time


def _held(function, seconds: float = 0.25) -> float:
    probe = GilProbe()
    until = time.perf_counter() + seconds
    with probe:
        while time.perf_counter() < until:
            function()
    assert probe.naps > 0
    return probe.held


def _python() -> int:
    return sum(i * i for i in range(20_000))


def test_a_python_loop_holds_the_lock_and_numpy_and_sleep_do_not():
    array = np.random.default_rng(0).random(1_000_000)
    looping = _held(_python)
    assert _held(lambda: np.sqrt(array)) < looping - 0.2
    assert _held(lambda: time.sleep(0.005)) < looping - 0.2


def test_several_uses_add_up():
    probe = GilProbe()
    with probe:
        time.sleep(0.01)
    first = probe.naps
    with probe:
        time.sleep(0.01)
    assert probe.naps > first > 0


def test_a_probe_that_never_ran_says_nothing_is_held():
    assert GilProbe().held == 0.0


def test_the_probe_ends_when_the_function_raises():
    probe = GilProbe()
    try:
        with probe:
            raise ValueError
    except ValueError:
        pass
    naps = probe.naps
    time.sleep(0.01)
    assert probe.naps == naps

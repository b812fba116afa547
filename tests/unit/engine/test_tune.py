"""The tuner's decisions as functions of facts: no clock, no thread, no process."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.events import Events
from penstock.engine.workers.threads import Pool
from penstock.engine.workers.tune import (
    MOST_THREADS,
    Climb,
    FlowFacts,
    FunctionFacts,
    Tuner,
    choose,
    decide,
    objections,
)

SLOW_PYTHON = FunctionFacts(asked="auto", cores=2, held=0.95, block_s=0.2, block_nbytes=100_000, workers=2)


def test_a_slow_python_function_goes_to_processes():
    assert choose(SLOW_PYTHON) == "process"
    assert objections(SLOW_PYTHON) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cores": 1}, "one processor"),
        ({"held": 0.3}, "30%"),
        ({"block_s": 0.0005}, "ms"),
        ({"block_nbytes": 500_000_000}, "500"),
        ({"workers": 1}, "memory budget"),
        ({"obstacle": "it holds an open file"}, "open file"),
    ],
)
def test_each_objection_alone_keeps_it_in_threads_and_says_why(change, word):
    facts = replace(SLOW_PYTHON, **change)
    assert choose(facts) == "thread"
    assert len(objections(facts)) == 1
    assert word in objections(facts)[0]


def test_what_the_user_asked_for_goes_first():
    assert choose(replace(SLOW_PYTHON, asked="thread")) == "thread"
    assert choose(replace(SLOW_PYTHON, asked="process", cores=1, held=0.0, workers=0)) == "process"


def _window(threads: int, *, latency_s: float, cpu_s: float = 0.0, most: float = 1e9, cores: int = 2) -> FlowFacts:
    """A second in front of a storage that answers after `latency_s`, at most `most` times a second."""
    by_cpu = cores / cpu_s if cpu_s else 1e9
    rate = min(threads / (latency_s + cpu_s), most, by_cpu)
    cpu = rate * cpu_s
    return FlowFacts(
        window_s=1.0,
        jobs=int(rate),
        waited_s=0.9,
        job_wall_s=float(threads),
        job_cpu_s=cpu,
        job_queued_s=max(0.0, threads - cpu) if latency_s == 0 else 0.0,
        idle=1 - cpu / cores,
        threads=threads,
        cores=cores,
    )


def _climbed(windows: int, **storage: float) -> list[int]:
    threads, climb, seen = 2, Climb(), []
    for _ in range(windows):
        decision = decide(_window(threads, **storage), climb)
        threads, climb = decision.threads, decision.climb
        seen.append(threads)
    return seen


def test_threads_grow_with_latency_up_to_the_most():
    seen = _climbed(40, latency_s=0.03)
    assert max(seen) == MOST_THREADS
    assert seen[-1] == MOST_THREADS


def test_a_storage_that_is_full_is_not_asked_by_more():
    seen = _climbed(200, latency_s=0.03, most=200)
    # Six threads saturate it; steps beyond are tried, found useless and taken back.
    assert sorted(seen)[len(seen) // 2] <= 10
    assert max(seen) < 20


def test_failed_steps_grow_rarer():
    seen = _climbed(400, latency_s=0.03, most=200)
    steps = [i for i in range(1, len(seen)) if seen[i] > seen[i - 1]]
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[-1] > gaps[len(gaps) // 2] or gaps[-1] >= 100


def test_computing_jobs_stay_at_the_cores():
    assert set(_climbed(50, latency_s=0.0, cpu_s=0.01)) == {2}


def test_mixed_jobs_stop_when_the_processors_are_used():
    seen = _climbed(100, latency_s=0.01, cpu_s=0.01)
    assert 2 < max(seen) <= 7


def test_a_consumer_that_does_not_wait_needs_no_more_threads():
    facts = replace(_window(2, latency_s=0.03), waited_s=0.01)
    assert decide(facts, Climb()).threads == 2
    assert decide(facts, Climb()).why == ""


def test_one_slow_window_is_no_reason_for_more_threads():
    slow, usual = _window(2, latency_s=0.03, most=20), replace(_window(2, latency_s=0.03), waited_s=0.0, jobs=300)
    climb = Climb()
    for facts in [slow, usual, slow, slow, usual] * 20:
        decision = decide(facts, climb)
        climb = decision.climb
        assert decision.threads == 2 and not decision.why


def test_a_step_is_measured_against_the_best_of_the_windows_before():
    climb = Climb()
    for most in (60, 40, 20):
        decision = decide(_window(2, latency_s=0.03, most=most), climb)
        climb = decision.climb
    assert decision.threads == 3 and climb.rate_before == 60
    settled = decide(_window(3, latency_s=0.03, most=61), climb)
    assert settled.threads == 3
    back = decide(_window(3, latency_s=0.03, most=61), settled.climb)
    assert back.threads == 2 and "back" in back.why


def test_a_step_without_gain_is_taken_back_and_told():
    facts = _window(3, latency_s=0.03, most=60)
    decision = decide(facts, Climb(before=2, rate_before=60.0))
    assert decision.threads == 2
    assert "back" in decision.why
    assert decision.climb.rest > 0


@given(
    threads=st.integers(1, MOST_THREADS),
    jobs=st.integers(0, 10_000),
    waited=st.floats(0, 1),
    wall=st.floats(0, 64),
    cpu=st.floats(0, 8),
    queued=st.floats(0, 64),
    idle=st.floats(0, 1),
    climb=st.builds(Climb, before=st.integers(0, 64), rate_before=st.floats(0, 1e6), settle=st.booleans()),
)
def test_decisions_stay_in_bounds_whatever_the_facts(threads, jobs, waited, wall, cpu, queued, idle, climb):
    facts = FlowFacts(1.0, jobs, waited, wall, cpu, queued, idle, threads, 4)
    decision = decide(facts, climb)
    assert 1 <= decision.threads <= MOST_THREADS or decision.threads == climb.before
    assert decision.threads == threads or decision.why


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _let_pass(pool: Pool, clock: _Clock, tuner: Tuner, seconds: float) -> None:
    """Jobs that only wait, as many as there are threads, each 30 ms."""
    for _ in range(int(seconds / 0.03 * pool.size)):
        pool.clock.add(0.0, 0.03)
    clock.now += seconds
    tuner.tick(clock.now)


def test_the_tuner_resizes_the_pool_and_tells_why():
    pool, events, clock = Pool(2), Events(), _Clock()
    tuner = Tuner(pool, events, clock)
    for _ in range(20):
        _let_pass(pool, clock, tuner, 0.3)
    assert pool.size > 10
    told = [e for e in events.recent if e.kind == "tune.threads"]
    assert told[0].values["before"] == 2
    assert told[0].values["threads"] == 3
    assert told[0].values["jobs_wait"] == 1.0


def test_the_tuner_looks_only_a_few_times_a_second_and_not_while_paused():
    pool, events, clock = Pool(2), Events(), _Clock()
    tuner = Tuner(pool, events, clock)
    for _ in range(20):
        _let_pass(pool, clock, tuner, 0.003)
    assert pool.size == 2
    tuner.pause()
    for _ in range(10):
        _let_pass(pool, clock, tuner, 0.3)
    assert pool.size == 2
    tuner.go_on()
    for _ in range(10):
        _let_pass(pool, clock, tuner, 0.3)
    assert pool.size > 2

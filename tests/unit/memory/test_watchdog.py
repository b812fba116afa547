"""The watchdog's decisions, without clocks; and that what it decides is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidInput, TooLarge
from penstock.core.events import Event, events
from penstock.memory.budget import Budget
from penstock.memory.limits import limit
from penstock.memory.meter import Meter
from penstock.memory.watchdog import (
    MIN_DATA_NBYTES,
    Action,
    MemorySample,
    Resize,
    Rules,
    Rung,
    RungMove,
    State,
    Watchdog,
    decide,
    plan_budget,
    trim_allocator,
)

MB = 1_000_000
GB = 1000 * MB
CALM = MemorySample(limit=GB, measured=300 * MB, leased=100 * MB, total=600 * MB, reserve=200 * MB)


def nothing() -> None:
    """A step whose effect does not matter here."""


LADDER = (
    Rung("read_ahead", nothing, frees_data=True),
    Rung("cache", nothing, frees_data=True),
    Rung("trim", nothing),
    Rung("stop", nothing, above=0.97),
)


def run(
    facts: MemorySample, samples: int, state: State | None = None, ladder: Sequence[Rung] = LADDER
) -> tuple[State, list[Action]]:
    """Give the same facts many times, letting the budget follow."""
    state, done = state or State(), []
    for _ in range(samples):
        state, actions = decide(facts, state, ladder)
        for action in actions:
            done.append(action)
            if isinstance(action, Resize):
                facts = replace(facts, total=action.total)
    return state, done


def pressed(share: float) -> MemorySample:
    """Facts at a share of the limit where the budget itself is right."""
    facts = replace(CALM, measured=int(share * GB), leased=0)
    return replace(facts, total=facts.target)


def test_nothing_happens_while_all_is_well() -> None:
    state, done = run(CALM, 200)
    assert done == []
    assert state.level == 0


def test_data_gives_way_at_once_when_the_model_takes_more() -> None:
    facts = replace(CALM, measured=500 * MB)
    assert facts.other == 400 * MB
    assert decide(facts, State())[1] == (Resize(400 * MB),)


def test_leased_bytes_are_not_counted_against_data_itself() -> None:
    filled = replace(CALM, measured=CALM.measured + 400 * MB, leased=CALM.leased + 400 * MB)
    assert filled.target == CALM.target


def test_bytes_that_are_not_there_yet_do_not_hide_the_model() -> None:
    reading = replace(CALM, leased=CALM.leased + 400 * MB, filling=400 * MB)
    assert (reading.other, reading.target) == (CALM.other, CALM.target)
    assert replace(reading, filling=900 * MB).other == reading.measured


def test_the_budget_never_goes_below_its_floor_nor_above_its_ceiling() -> None:
    assert replace(CALM, measured=5 * GB).target == MIN_DATA_NBYTES
    assert replace(CALM, measured=0, leased=0, ceiling=50 * MB).target == 50 * MB


def test_small_changes_are_noise() -> None:
    assert run(replace(CALM, measured=305 * MB), 50)[1] == []
    assert run(replace(CALM, measured=295 * MB), 50)[1] == []


def test_growth_waits_and_comes_in_halves() -> None:
    facts = replace(CALM, total=200 * MB)
    assert run(facts, 19)[1] == []
    _, done = run(facts, 20 * 6)
    totals = [action.total for action in done if isinstance(action, Resize)]
    assert totals[:3] == [400 * MB, 500 * MB, 550 * MB]
    assert totals[-1] == 600 * MB


def test_growth_trusts_only_the_least_room_seen_meanwhile() -> None:
    facts, state = replace(CALM, total=200 * MB), State()
    for n in range(20):
        state, actions = decide(replace(facts, measured=500 * MB) if n == 7 else facts, state)
    assert actions == (Resize(300 * MB),)  # half way to 400 MB, though 600 MB are free now


def test_growth_does_not_credit_leases_that_are_not_filled_yet() -> None:
    facts, state = replace(CALM, total=200 * MB), State()
    for n in range(20):  # 300 MB more are leased on the way, and nothing more is measured
        state, actions = decide(replace(facts, leased=400 * MB) if n > 3 else facts, state)
    assert actions == (Resize(400 * MB),)  # half way to 600 MB, not to 900 MB


def test_a_short_dip_restarts_the_wait() -> None:
    facts = replace(CALM, total=200 * MB)
    state, _ = run(facts, 19)
    state, _ = run(replace(facts, measured=700 * MB), 1, state)
    assert run(facts, 19, state)[1] == []


def test_pressure_takes_one_rung_and_lets_it_settle() -> None:
    state, done = run(pressed(0.92), 1)
    assert done == [RungMove(0, down=True)]
    state, done = run(pressed(0.92), 5, state)
    assert done == []
    assert run(pressed(0.92), 1, state)[1] == [RungMove(1, down=True)]


def test_the_last_resort_waits_for_a_critical_share() -> None:
    state, done = run(pressed(0.95), 500)
    assert done == [RungMove(0, down=True), RungMove(1, down=True), RungMove(2, down=True)]
    assert run(pressed(0.98), 1, state)[1] == [RungMove(3, down=True)]


def test_a_critical_share_does_not_wait() -> None:
    assert run(pressed(0.98), 4)[1] == [RungMove(n, down=True) for n in range(4)]


def test_between_the_bands_nothing_moves() -> None:
    state, _ = run(pressed(0.92), 1)
    assert run(pressed(0.80), 500, state)[1] == []


def test_steps_are_taken_back_one_by_one_after_a_long_calm() -> None:
    state, _ = run(pressed(0.98), 4)
    assert run(pressed(0.5), 49, state)[1] == []
    state, done = run(pressed(0.5), 200, state)
    assert done == [RungMove(n, down=False) for n in (3, 2, 1, 0)]
    assert state.level == 0


def test_a_budget_that_stays_overdrawn_calls_on_data_rungs_only() -> None:
    facts = replace(CALM, measured=700 * MB, leased=500 * MB, total=450 * MB, ceiling=450 * MB)
    assert run(facts, 19)[1] == []
    assert run(facts, 500)[1] == [RungMove(0, down=True), RungMove(1, down=True)]


@given(
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 900)), min_size=1, max_size=200),
    st.integers(0, 400),
)
def test_whatever_happens_the_state_stays_sane(samples: list[tuple[int, int]], reserve: int) -> None:
    state, total = State(), 500 * MB
    for measured, leased in samples:
        facts = MemorySample(GB, measured * MB, leased * MB, total, reserve * MB)
        level = state.level
        state, actions = decide(facts, state, LADDER)
        assert 0 <= state.level <= len(LADDER)
        assert abs(state.level - level) <= 1
        for action in actions:
            if isinstance(action, Resize):
                assert action.total >= facts.floor
                assert action.total <= max(facts.target, total)
                total = action.total
        if facts.target < total:
            assert total - facts.target <= 0.01 * GB


def test_the_plan_leaves_a_reserve() -> None:
    assert plan_budget(2 * GB, 400 * MB) == 1200 * MB
    assert plan_budget(2 * GB, 400 * MB, reserve=0) == 1600 * MB
    with limit(2 * GB, reserve="100MB"):
        assert plan_budget(2 * GB, 400 * MB) == 1500 * MB


def test_the_reserve_gives_way_before_the_smallest_pipe() -> None:
    assert plan_budget(500 * MB, 450 * MB) == MIN_DATA_NBYTES


def test_a_limit_that_leaves_nothing_is_refused_with_the_numbers() -> None:
    with pytest.raises(TooLarge, match=r"490 MB already in use under a limit of 500 MB.*32 MB.*by 22 MB") as caught:
        plan_budget(500 * MB, 490 * MB)
    assert caught.value.limit == 10 * MB
    with pytest.raises(TooLarge, match=r"the data budget is 0 B.*raise the memory limit by 132 MB"):
        plan_budget(500 * MB, 600 * MB)


@pytest.fixture
def told() -> Iterator[list[Event]]:
    heard: list[Event] = []
    remove = events.listen(heard.append)
    yield heard
    remove()


def test_a_sample_resizes_the_budget_and_walks_the_ladder(told: list[Event]) -> None:
    moves: list[str] = []
    ladder = [Rung("read_ahead", lambda: moves.append("down"), lambda: moves.append("up"))]
    used, budget = Meter().read().nbytes, Budget(10 * GB)
    tight, roomy = int(used / 0.93), 10 * used + GB
    limits = [tight, *[roomy] * 2]
    watchdog = Watchdog(budget, lambda: limits.pop(0), Meter(), ladder, rules=Rules(up_samples=2), floor=MB)
    facts = watchdog.sample()
    assert facts.limit == tight
    assert budget.total == MB
    assert moves == ["down"]
    watchdog.sample()
    watchdog.sample()
    assert moves == ["down", "up"]
    assert [event.kind for event in told] == ["watchdog.budget", "watchdog.read_ahead", "watchdog.read_ahead"]
    assert [event.values["down"] for event in told[1:]] == [True, False]


def test_a_failing_rung_is_told_and_does_not_end_the_watch(told: list[Event]) -> None:
    again = threading.Event()

    def fail() -> None:
        raise OSError("no luck")

    ladder = [Rung("broken", fail), Rung("good", again.set)]
    watchdog = Watchdog(Budget(MB), 1000, Meter(), ladder, every_s=0.001)
    watchdog.start()
    with pytest.raises(RuntimeError, match="already running"):
        watchdog.start()
    assert again.wait(30)
    watchdog.stop()
    watchdog.stop()
    assert [event.values["error"] for event in told if event.kind == "watchdog.failed"] == ["OSError('no luck')"]
    assert "penstock-watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_rung_may_stop_the_watchdog() -> None:
    stopped = threading.Event()

    def stop() -> None:
        watchdog.stop()
        stopped.set()

    watchdog = Watchdog(Budget(MB), 1000, Meter(), [Rung("stop", stop)], every_s=0.001)
    watchdog.start()
    assert stopped.wait(30)


def test_a_ceiling_below_the_floor_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ceiling of 1 MB is below its floor"):
        Watchdog(Budget(MB), GB, Meter(), ceiling=MB)


def test_trimming_gives_freed_memory_back() -> None:
    pieces = [b"x" * 100_000 for _ in range(1000)]
    del pieces[:-1]  # the last one sits above the hole, so that the allocator keeps it
    before = Meter().read().nbytes
    if before < 90 * MB:
        pytest.skip("this allocator gave the memory back by itself")
    assert trim_allocator()
    assert Meter().read().nbytes < before - 50 * MB


@pytest.mark.parametrize(
    ("who", "blamed"), [("worker processes", "outside of all data buffers"), ("batches", "most of it data (batches")]
)
def test_what_worker_processes_hold_is_no_data_to_the_verdict(who: str, blamed: str) -> None:
    """They lease what they were found to hold, whatever a function given to map() keeps there."""
    words: list[str] = []
    limit_nbytes = Meter().read().nbytes + 300 * MB
    budget, kept = Budget(10 * GB), list[bytes]()
    watchdog = Watchdog(budget, limit_nbytes, Meter(), give_up=words.append)
    with budget.lease(0, who=who) as lease:
        while not words and len(kept) < 600:
            kept.append(b"x" * (MB // 2))
            lease.resize(len(kept) * MB // 2)
            watchdog.sample()
    assert len(words) == 1 and blamed in words[0]

"""What a run's events say, whatever they are and however many."""

from __future__ import annotations

import json
import math

import pytest

from penstock.watch.chart_data import draw
from penstock.watch.digest import MOST_DECISIONS, MOST_EPOCHS, Digest
from tests.unit.watch.runs import GB, START_T, event, progress, sample, start, training


def digest(events) -> Digest:
    found = Digest()
    for record in events:
        found.take(record)
    return found


def test_a_whole_run():
    found = digest(training(400))
    assert found.status == "finished" and found.attempts == 2 and found.deaths == 1
    assert found.progress["total_steps"] == 400 and len(found.epochs) == 10
    assert 0.03 < found.waited_s / found.trained_s < 0.12
    assert found.peak_nbytes == max(bucket.used for bucket in found.grid.memory.values())
    assert set(found.grid.numbers) >= {"metric:loss", "metric:val_loss", "samples_per_s", "waited_share", "micro"}


def test_nothing_was_recorded():
    found = digest([])
    assert found.status == "empty" and found.elapsed_s == 0
    assert json.dumps(draw(found, name="x"), allow_nan=False)


def test_only_memory_and_only_progress():
    assert digest([sample(START_T)]).status == "running"
    found = digest([progress(START_T + n, n + 1) for n in range(5)])
    assert found.peak_nbytes == 0 and found.progress["total_steps"] == 5


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "some.thing", "t": START_T, "who": "x", "deep": {"er": [1, 2]}},
        {"kind": "some.thing", "t": START_T},
        {"kind": "train.progress", "t": START_T, "logs": [1], "samples_per_s": "fast"},
        {"kind": "train.progress", "t": START_T, "logs": {"loss": None, "ok": True}},
        {"kind": "train.epoch", "t": START_T, "epoch": "first", "logs": {"loss": {}}},
        {"kind": "memory.sample", "t": START_T, "used_nbytes": "much"},
        {"kind": "memory.sample", "t": START_T, "used_nbytes": 5, "holders": {"a": None, "b": 3.0}},
        {"kind": "memory.sample", "t": START_T},
        {"kind": "run.start", "t": START_T, "config": 3, "environment": [1]},
        {"kind": "run.plan", "t": START_T, "text": None, "stages": [{"name": 1, "nbytes": "x"}, 7]},
        {"kind": "run.end", "t": START_T},
        {"kind": "run.death", "t": START_T},
        {"kind": "guard.oom", "t": START_T},
        {"kind": "tune.threads", "t": "yesterday"},
        {"kind": "tune.threads", "t": float("nan")},
        {"kind": "tune.threads"},
    ],
)
def test_events_of_other_versions_do_no_harm(odd):
    found = digest([start(), odd, *[progress(START_T + n, n + 1) for n in range(3)]])
    chart_data = draw(found, name="x")
    assert json.dumps(chart_data, allow_nan=False)
    assert chart_data["facts"]["total_steps"] == 3


def test_a_night_between_attempts_is_left_out():
    night_s = 40_000.0
    first = [start(), *(sample(START_T + n) for n in range(100))]
    second = [sample(START_T + night_s), start(START_T + night_s, attempt=2), sample(START_T + night_s + 10)]
    found = digest(first + second)
    assert found.elapsed_s == pytest.approx(99 + 1 + 10, abs=1)
    assert found.status == "running" and found.attempts == 2


def test_a_clock_set_back_does_not_fold_the_run():
    found = digest(
        [start(), *(sample(START_T + n) for n in range(100)), *(sample(START_T - 5000 + n) for n in range(50))]
    )
    assert found.elapsed_s == pytest.approx(99 + 49, abs=1)


def test_a_quiet_run_without_samples_keeps_its_time():
    """Without memory samples a long silence is no sign that nobody recorded."""
    assert digest([event(START_T, "a.b"), event(START_T + 5000, "a.b")]).elapsed_s == 5000


def test_status_of_a_run_that_died_and_went_on():
    died = [start(), event(START_T + 1, "run.death", signal=9, why="killed")]
    assert digest(died).status == "dead" and digest(died).error == "killed"
    on = digest([*died, event(START_T + 2, "run.restart", attempt=2), progress(START_T + 3, 1)])
    assert on.status == "running" and on.deaths == 1
    again = digest([*training(20), sample(START_T + 99)])
    assert again.status == "finished"  # a last sample after the end changes nothing
    assert digest([*training(20), start(START_T + 99, attempt=3)]).status == "running"


def test_nan_is_noticed_with_its_step():
    found = digest(
        [
            progress(START_T, 1),
            progress(START_T + 1, 2, logs={"loss": "nan"}),
            progress(START_T + 2, 3, logs={"loss": "inf"}),
        ]
    )
    assert found.first_not_finite == {"loss": 2} and math.isinf(found.logs["loss"])


def test_everything_is_bounded():
    """By construction: whatever comes a hundred times as often takes no more room."""

    def flood(count):
        yield start()
        for n in range(count):
            t = START_T + n * 0.5
            yield progress(t, n + 1, logs={"loss": 1.0 / (n + 1)})
            yield event(t, f"kind.{n}", "x" * 1000, text="y" * 1000)
            yield event(t, "guard.oom", "x", phase="forward", rows=n)
            yield event(t, "train.epoch", epoch=n, logs={"val_loss": 1.0}, seconds=1)
            yield sample(t, **{f"holder {n}": 5})

    small, large = digest(flood(300)), digest(flood(6000))
    for found in (small, large):
        assert len(found.first_decisions) <= MOST_DECISIONS and len(found.last_decisions) <= MOST_DECISIONS
        assert len(found.grave_decisions) <= MOST_DECISIONS and len(found.epochs) <= MOST_EPOCHS
        assert len(found.kinds) <= MOST_DECISIONS
    sizes = [len(json.dumps(draw(found, name="x"))) for found in (small, large)]
    assert sizes[1] < 1.6 * sizes[0] and sizes[1] < 500_000


def test_grave_decisions_are_kept_among_many():
    def events():
        for n in range(1000):
            yield event(START_T + n, "tune.threads", threads=2, before=1)
        yield event(START_T + 1000, "run.death", signal=9, why="killed")
        for n in range(1000):
            yield event(START_T + 1001 + n, "tune.threads", threads=2, before=1)

    found = digest(events())
    assert any(decision.kind == "run.death" for decision in found.decisions)
    times = [decision.at_s for decision in found.decisions]
    assert times == sorted(times) and found.kinds["tune.threads"] == 2000


def test_limits_and_memory_now():
    found = digest([start(), sample(START_T, limit=3 * GB)])
    assert found.memory["limit_nbytes"] == 3 * GB and found.memory["holders"]["batches"] == GB // 10

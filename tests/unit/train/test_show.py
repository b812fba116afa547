"""What a person sees, from the events alone."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from penstock.train.run_state import RunState
from penstock.train.show import JsonLines, Lines, draw, make_display, summary

T = 1_700_000_000.0


def event(kind, at=0.0, **values):
    return {"t": T + at, "kind": kind, "who": "test", **values}


def progress(at, epoch, step, total):
    place = {"epochs": 2, "epoch": epoch, "step": step, "steps_per_epoch": 100, "total_steps": total}
    speed = {"samples": total * 8, "samples_per_s": 80.0, "waited_share": 0.25, "waited_s": 1.0}
    return event("train.progress", at, **place, **speed, logs={"loss": 0.5, "accuracy": 0.75}, micro=4)


STORY = [
    event("run.start", attempt=1, pid=7, limit_nbytes=2_000_000_000),
    event("train.preparing", rows=0, seconds=0.0),
    event("train.prepared", text="3 numbers", ignored={"id": "it is one"}, seconds=1.0, train=800, without_target=2),
    event("train.data", text="3 numbers", steps=100, train_rows=800),
    event("run.forecast", fits=False, micro=4, batch=8, peak_nbytes=3_000_000_000, limit_nbytes=2_000_000_000, text=""),
    event("train.begin", 10, epochs=2, epoch=0, step=0, resumed=False),
    progress(11, 0, 10, 10),
    progress(12, 0, 20, 20),
    event("memory.sample", 12, used_nbytes=500_000_000, limit_nbytes=2_000_000_000, holders={"batches": 100_000_000}),
    event("tune.threads", 12, before=2, threads=4, why="the model waits"),
    event("watchdog.budget", 12, before=2, total=1, measured=1, limit=2),
]


@pytest.fixture
def state():
    state = RunState()
    for record in STORY:
        state.take(record)
    return state


def test_time_left_follows_from_the_speed(state):
    assert state.steps_per_s == pytest.approx(10)
    assert state.eta_s == pytest.approx(18)


def test_the_panel_shows_everything(state):
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(draw(state))
    text = console.export_text()
    for part in ("epoch 1/2", "step 20/100", "18 s left", "80 samples/s", "25%", "loss 0.5", "500 MB of 2 GB (25%)",
                 "batches 100 MB", "micro-batches of 4 do", "Reading threads 2 → 4"):  # fmt: skip
        assert part in text, f"{part!r} is missing in\n{text}"
    assert "data budget" not in text


@pytest.mark.parametrize("taken", range(len(STORY) + 1))
def test_the_panel_can_be_drawn_at_any_moment(taken):
    state = RunState()
    for record in STORY[:taken]:
        state.take(record)
    out = io.StringIO()
    Console(file=out, width=60).print(draw(state))
    lines = out.getvalue().splitlines()
    assert any(line.strip() for line in lines) and all(len(line) <= 60 for line in lines)


def test_lines_for_logs():
    out = io.StringIO()
    display = Lines(out)
    for record in STORY:
        display.take(record)
    text = out.getvalue()
    assert "2 rows without a target are left out" in text and "id is left out: it is one" in text
    assert text.count("samples/s") == 1, "progress lines are thinned"
    assert "Reading threads" in text


def test_the_first_step_tells_where_the_time_went():
    loaded = {"seconds": 5.0, "waited_s": 4.0, "beside": True}
    state, story = RunState(), [
        event("run.start", attempt=1, pid=7, limit_nbytes=2_000_000_000),
        event("train.preparing", 1, rows=0, seconds=0.0, loading="jax"),
        event("train.prepared", 2, text="3 numbers", ignored={}, seconds=1.0, train=800, without_target=1),
        event("train.data", 2, text="3 numbers", steps=100, train_rows=800, backend="jax", will_forecast=False),
        {**event("train.loaded", 6, **loaded), "who": "jax"},
        event("train.begin", 8, epochs=2, epoch=0, step=0, resumed=False),
        progress(11, 0, 1, 1),
    ]  # fmt: skip
    lines = [state.take(record) or "" for record in story]
    assert "jax is loaded meanwhile" in lines[1] and "1 row without a target is left out" in lines[2]
    assert "1.0 s of it beside the preparation" in lines[4]
    spent = "preparing 1.0 s, waiting for jax 4.0 s, building the model 2.0 s, the step 3.0 s"
    assert lines[-1].endswith(f"(first step after 11.0 s: {spent})")
    assert "first step" not in (state.take(progress(12, 0, 2, 2)) or "")


def test_a_long_wait_is_told(monkeypatch):
    clock, out = iter(range(0, 1000, 4)), io.StringIO()
    monkeypatch.setattr("penstock.train.show.time.monotonic", lambda: float(next(clock)))
    display = Lines(out)
    display.take(event("run.start", attempt=1, pid=7, limit_nbytes=2_000_000_000))
    display.take(event("train.data", 1, text="", steps=9, train_rows=8, backend="torch", will_forecast=True))
    for at in range(2, 10, 2):
        display.take(event("memory.sample", at, used_nbytes=1, limit_nbytes=2, holders={}))
    told = [line.partition(" ")[2] for line in out.getvalue().splitlines()]
    assert told[-2:] == ["still forecasting: 3 s so far", "still forecasting: 7 s so far"]


def test_a_restart_is_told():
    state = RunState()
    line = state.take(event("run.death", signal="SIGKILL", why="killed by the kernel", confirmed=True, micro=4))
    assert line is not None and "killed by the kernel" in line
    line = state.take(event("run.restart", micro=4, why="half"))
    assert line is not None and "micro-batches of 4" in line


def test_json_lines_are_the_events():
    out = io.StringIO()
    display = JsonLines(out)
    for record in STORY:
        display.take(record)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == STORY


def test_what_is_not_a_terminal_gets_lines():
    assert isinstance(make_display(as_json=False, out=io.StringIO()), Lines)


@pytest.mark.parametrize(
    ("will_forecast", "said"),
    [(True, "loading torch to try a few small steps: will a batch fit?"), (False, "loading torch")],
)
def test_loading_a_framework_is_told(will_forecast, said):
    found = event("train.data", text="", steps=1, train_rows=8, backend="torch", will_forecast=will_forecast)
    line = RunState().take(found)
    assert line == said


def test_the_error_of_a_number_is_told_in_its_own_units(state):
    text = summary(state, {"final": {"mae": 0.5}, "in_units_of_the_target": {"mae": 120.0}})
    assert "mae 0.5 (in the target's own units: mae 120)" in text
    assert "units" not in summary(state, {"final": {"accuracy": 0.5}})

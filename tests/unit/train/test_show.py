"""What a person sees, from the events alone."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from penstock.train.scene import Scene
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
def scene():
    scene = Scene()
    for record in STORY:
        scene.take(record)
    return scene


def test_time_left_follows_from_the_speed(scene):
    assert scene.steps_per_s == pytest.approx(10)
    assert scene.eta_s == pytest.approx(18)


def test_the_panel_shows_everything(scene):
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(draw(scene))
    text = console.export_text()
    for part in ("epoch 1/2", "step 20/100", "18 s left", "80 samples/s", "25%", "loss 0.5", "500 MB of 2 GB (25%)",
                 "batches 100 MB", "micro-batches of 4 do", "Reading threads 2 → 4"):  # fmt: skip
        assert part in text, f"{part!r} is missing in\n{text}"
    assert "data budget" not in text


@pytest.mark.parametrize("taken", range(len(STORY) + 1))
def test_the_panel_can_be_drawn_at_any_moment(taken):
    scene = Scene()
    for record in STORY[:taken]:
        scene.take(record)
    out = io.StringIO()
    Console(file=out, width=60).print(draw(scene))
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


def test_a_restart_is_told():
    scene = Scene()
    line = scene.take(event("run.death", signal="SIGKILL", why="killed by the kernel", confirmed=True, micro=4))
    assert line is not None and "killed by the kernel" in line
    line = scene.take(event("run.restart", micro=4, why="half"))
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
    ("foretold", "said"),
    [(True, "loading torch to try a few small steps: will a batch fit?"), (False, "loading torch")],
)
def test_loading_a_framework_is_told(foretold, said):
    line = Scene().take(event("train.data", text="", steps=1, train_rows=8, backend="torch", foretold=foretold))
    assert line == said


def test_the_error_of_a_number_is_told_in_its_own_units(scene):
    text = summary(scene, {"final": {"mae": 0.5}, "in_units_of_the_target": {"mae": 120.0}})
    assert "mae 0.5 (in the target's own units: mae 120)" in text
    assert "units" not in summary(scene, {"final": {"accuracy": 0.5}})

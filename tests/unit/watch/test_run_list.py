"""The runs of a live page: listed from their last lines, read piece by piece, forgotten when there are many."""

from __future__ import annotations

import os
import time

import pytest

from penstock.watch.live import run_list as galleries
from penstock.watch.live.run_list import RunList, peek
from tests.unit.watch.runs import START_T, event, progress, sample, start, training, write_run


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], {"status": "empty", "epoch": None, "loss": None}),
        ([start()], {"status": "running", "epoch": None, "loss": None}),
        ([progress(START_T, 150)], {"status": "running", "epoch": 1, "loss": 1.51306}),
        ([progress(START_T, 1, logs={"loss": "nan"})], {"status": "running", "epoch": 0, "loss": 0}),
        ([*training(20)], {"status": "finished", "epoch": 9}),
        ([*training(20), sample(START_T + 21)], {"status": "finished", "epoch": 9}),
        ([start(), sample(START_T + 1)], {"status": "running"}),
        ([*training(20), start(), sample(START_T + 22)], {"status": "running", "epoch": 9}),
        ([start(), event(START_T, "run.death")], {"status": "dead"}),
        ([event(START_T, "run.end", status="failed")], {"status": "failed"}),
    ],
)
def test_a_state_from_the_last_lines(tmp_path, events, state):
    found = peek(write_run(tmp_path, events))
    for name, value in state.items():
        assert found[name] == value or (name == "loss" and found[name] is None and not value), name


def test_a_long_run_is_not_read_to_be_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(galleries, "PEEK_NBYTES", 3000)
    write_run(tmp_path / "long", [*training(300, end=False), event(START_T, "run.end", status="failed")])
    assert peek(tmp_path / "long")["status"] == "failed" and peek(tmp_path / "long")["epoch"] == 9


def test_a_listing_follows_the_folder(tmp_path):
    run_list = RunList(tmp_path)
    assert run_list.listing() == []
    write_run(tmp_path / "a", training(20))
    write_run(tmp_path / "b", [start(), progress(START_T, 1)])
    old = time.time() - 1000
    os.utime(tmp_path / "a" / "events.jsonl", (old - 1, old - 1))
    os.utime(tmp_path / "b" / "events.jsonl", (old, old))
    assert [(run["name"], run["status"]) for run in run_list.listing()] == [("b", "silent"), ("a", "finished")]
    write_run(tmp_path / "b", [event(START_T + 9, "run.end", status="finished")])
    assert run_list.listing()[0]["status"] == "finished"


def test_chart_data_follows_the_run(tmp_path):
    run_list = RunList(tmp_path)
    assert run_list.chart_data("r") is None and run_list.chart_data("../r") is None and run_list.facts("r") is None
    write_run(tmp_path / "r", [start(), progress(START_T, 1)])
    first, more = run_list.chart_data("r")
    assert not more and first["facts"]["total_steps"] == 1
    write_run(tmp_path / "r", [progress(START_T + 60, 2)])
    second, _ = run_list.chart_data("r", first["place"])
    assert second["facts"]["total_steps"] == 2 and second["series"]["total_steps"]["v"][-1] == 2
    assert run_list.facts("r")["total_steps"] == 2


def test_a_run_written_anew_is_another_run(tmp_path):
    run_list = RunList(tmp_path)
    write_run(tmp_path / "r", training(50))
    assert run_list.chart_data("r")[0]["facts"]["status"] == "finished"
    (tmp_path / "r" / "events.jsonl").unlink()
    write_run(tmp_path / "r", [start(), sample(START_T)])
    again = run_list.chart_data("r")[0]["facts"]
    assert again["status"] != "finished" and again["total_steps"] is None


def test_a_long_run_comes_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(galleries, "TURN_S", -1.0)
    write_run(tmp_path / "r", training(5000))
    run_list = RunList(tmp_path)
    turns, more = 0, True
    while more:
        chart_data, more = run_list.chart_data("r")
        turns += 1
    assert turns > 1 and chart_data["facts"]["total_steps"] == 5000


def test_few_runs_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr(galleries, "MOST_OPEN", 2)
    run_list = RunList(tmp_path)
    for name in "abcd":
        write_run(tmp_path / name, [start()])
        run_list.chart_data(name)
    assert list(run_list._open) == ["c", "d"]

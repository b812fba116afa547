"""Pictures: a page that is told only what changed ends up with the same charts as one that is told everything."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from penstock.core.events import events
from penstock.dataset import Dataset
from penstock.watch.chart_data import SILENT_S, draw, flat, metric_names, place
from penstock.watch.digest import Digest
from penstock.watch.summary import summarise
from tests.stand_ins import NumberUnits
from tests.unit.watch.runs import GB, START_T, event, progress, sample, start, training


def digest(events) -> Digest:
    found = Digest()
    for record in events:
        found.take(record)
    return found


def merge(old, chart_data):
    """What the page does (page/live.js)."""
    if old is None or chart_data["from"] == 0:
        return {**chart_data, "story": chart_data.get("story") or (old or {}).get("story")}
    first = chart_data["from"]
    series = {}
    for name, now in chart_data["series"].items():
        then = old["series"].get(name, {key: [] for key in now})
        keep = sum(index < first for index in then["i"])
        series[name] = {key: then[key][:keep] + now[key] for key in now}
    then, now = old["memory"], chart_data["memory"]
    keep = sum(index < first for index in then["i"])
    memory = {key: then[key][:keep] + now[key] for key in ("i", "used", "limit")}
    padded = {name: then["holders"].get(name, [0] * len(then["i"])) for name in now["holders"]}
    memory["holders"] = {name: padded[name][:keep] + values for name, values in now["holders"].items()}
    return {**chart_data, "series": series, "memory": memory, "story": chart_data.get("story") or old["story"]}


@pytest.mark.parametrize("every", [1, 7, 50, 333])
def test_changes_add_up_to_the_whole(every):
    """Also across merges of buckets: 1500 events on a grid of 64."""
    found, shown, sent = Digest(most_buckets=64), None, ""
    for number, record in enumerate(training(1000)):
        found.take(record)
        if number % every == 0:
            shown = merge(shown, draw(found, name="x", since=sent, now_s=0))
            sent = shown["place"]
    shown = merge(shown, draw(found, name="x", since=sent, now_s=0))
    whole = draw(found, name="x", now_s=0)
    assert {**shown, "from": 0} == whole


def test_a_change_is_small():
    found = digest(training(2000))
    known = place(found)
    found.take(progress(START_T + 1002, 2001))
    change = draw(found, name="x", since=known)
    assert change["from"] > 0 and "story" not in change
    assert len(json.dumps(change)) < 5000 < len(json.dumps(draw(found, name="x"))) / 4
    found.take(event(START_T + 1003, "tune.threads", threads=2, before=1, why="x"))
    assert "story" in draw(found, name="x", since=known)


@pytest.mark.parametrize(
    "since", ["", "x", "1.2", "0.999999.3", "9.0.0", "-1.-1.-1", "1.2.3.4", "٣.1.1", "1" * 30 + ".0.0"]
)
def test_a_place_that_cannot_be_gets_everything(since):
    chart_data = draw(digest(training(50)), name="x", since=since)
    assert chart_data["from"] == 0 and "story" in chart_data


def test_numbers_at_the_top():
    found = digest([start(), *(progress(START_T + n, n + 1) for n in range(150)), sample(START_T + 150)])
    facts = draw(found, name="x", now_s=START_T + 151)["facts"]
    assert facts["status"] == "running" and facts["epoch"] == 1 and facts["step"] == 50
    assert facts["limit_nbytes"] == 2 * GB and facts["used_nbytes"] == facts["peak_nbytes"] == int(0.8 * GB)
    assert facts["left_s"] == pytest.approx(850, rel=0.05)
    assert facts["waited_share"] == pytest.approx(0.04)


def test_a_run_that_says_nothing_any_more():
    found = digest([start(), progress(START_T, 1)])
    assert draw(found, name="x", now_s=START_T + SILENT_S - 1)["facts"]["status"] == "running"
    assert draw(found, name="x", now_s=START_T + SILENT_S + 1)["facts"]["status"] == "silent"
    assert draw(digest(training(20)), name="x", now_s=START_T * 2)["facts"]["status"] == "finished"


def test_settings_become_rows():
    rows = flat({"a": 1, "packages": {"numpy": "2.1"}, "limit_nbytes": 2 * GB, "none": None, "text": "x" * 999})
    assert rows[:3] == [("a", "1"), ("packages.numpy", "2.1"), ("limit", "2 GB")] and len(rows[3][1]) == 500
    assert flat(None) == flat([1]) == []


def test_losses_come_first():
    chart_data = {"series": {"metric:accuracy": {}, "metric:val_loss": {}, "metric:loss": {}, "micro": {}}}
    assert metric_names(chart_data) == ["loss", "val_loss", "accuracy"]


def test_a_million_steps_by_construction():
    """The largest chart data there can be: every bucket of every series full, every list at its bound."""
    found = Digest()
    grid = found.grid
    for index in range(grid.most_buckets):
        at_s = index * grid.width_s
        for number in range(20):
            grid.add(at_s, f"metric:m{number}", 1.23456789 + index)
        grid.add_memory(at_s, 123456789, 987654321, {f"holder {n}": 12345678 for n in range(12)})
    assert len(json.dumps(draw(found, name="x"))) < 1_000_000


@pytest.mark.parametrize(
    ("unit", "asked", "shown"),
    [(1_000, {}, "uniformly random (coverage 1.00): all rows in one window"), (2_000, {"window": 500}, "coverage 0.0")],
)
def test_the_report_shows_how_well_each_shuffle_mixes(unit, asked, shown):
    """The event that a run really emits, through the record's JSON, to the page and the terminal."""
    heard = []
    remove = events.listen(heard.append)
    try:
        rows = Dataset.of(NumberUnits((unit,) * 20, 100)).shuffle(seed=1, **asked).batch(256)
        assert sum(len(batch) for batch in rows) == unit * 20
    finally:
        remove()
    (told,) = [e for e in heard if e.kind == "shuffle.mixes"]
    record = json.loads(json.dumps(event(1, told.kind, told.who, **told.values)))
    chart_data = draw(digest([start(), record]), name="run")
    (text,) = chart_data["story"]["shuffle"]
    assert shown in text
    assert chart_data["story"]["decisions"] == draw(digest([start()]), name="run")["story"]["decisions"]
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(summarise(chart_data))
    assert shown in console.export_text()

"""The preparing pass notices rows that are sorted by their target, and training mixes them."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.core.events import events
from penstock.sources.csv import plan as csv_plan
from penstock.train.config import Config
from penstock.train.flow import prepare, streams

ROWS = 60_000


def written(folder, target: np.ndarray) -> str:
    noise = np.random.default_rng(1).normal(size=ROWS).round(4)
    lines = "".join(f"{x},{y}\n" for x, y in zip(noise, target, strict=True))
    (folder / "t.csv").write_text("x,y\n" + lines)
    return str(folder / "t.csv")


def told() -> list[float]:
    return [event.values["clustered"] for event in events.recent if event.kind == "train.sorted"]


TARGETS = {
    "numbers": np.arange(ROWS) / 7,
    "classes": np.arange(ROWS) * 4 // ROWS,
    "words": np.array(["ant", "bee", "cat"])[np.arange(ROWS) * 3 // ROWS],
}


@pytest.mark.parametrize("kind", TARGETS)
def test_sorted_is_told_and_random_is_not(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 8_000)
    before = len(told())
    for name, order in (("sorted", np.arange(ROWS)), ("random", np.random.default_rng(0).permutation(ROWS))):
        (tmp_path / name).mkdir()
        prepare(Config(data=written(tmp_path / name, TARGETS[kind][order]), target="y"))
    assert len(told()) == before + 1
    assert told()[-1] > 0.7


def test_rows_sorted_by_a_time_are_told(tmp_path, monkeypatch):
    """The target is in random order; of the two times, one is that of the rows and one is not."""
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 8_000)
    random = np.random.default_rng(1)
    seconds = np.arange(0, 20_000 * 40, 40)
    when = np.datetime64("2026-01-01T00:00:00") + seconds
    other = random.permutation(when)
    lines = "".join(f"{a},{b},{y}\n" for a, b, y in zip(when, other, random.integers(0, 3, 20_000), strict=True))
    (tmp_path / "t.csv").write_text("when,other,y\n" + lines)
    events.recent.clear()
    prepare(Config(data=str(tmp_path / "t.csv"), target="y"))
    assert [e.values["columns"] for e in events.recent if e.kind == "train.sorted_by"] == [["when"]]
    assert told() == []


def test_the_training_stream_of_sorted_rows_mixes(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    config = Config(data=written(tmp_path, TARGETS["classes"]), target="y", batch=256)
    batches = streams(config, prepare(config)).train
    seen = [len(np.unique(y)) for _, y in batches]
    assert isinstance(batches.ds, ps.Dataset) and min(seen) == 4

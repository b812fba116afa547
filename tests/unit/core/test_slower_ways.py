"""Slower ways are counted, told by events, and shown by explain and in a report."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.core import events as hub
from penstock.core.events import events, fallbacks, fallbacks_in_words, fell_back
from penstock.feed.convert import aligned
from penstock.watch.decisions import describe


@pytest.fixture(autouse=True)
def _counted_from_zero(monkeypatch):
    monkeypatch.setattr(hub, "_counts", {})


@pytest.fixture
def told():
    heard = []
    stop = events.listen(lambda event: heard.append(event) if event.kind == "fallback" else None)
    yield heard
    stop()


def test_events_grow_with_the_logarithm_of_what_happened(told):
    for _ in range(250):
        fell_back("reader", "a reason")
    assert [event.values["count"] for event in told] == [1, 10, 100]
    assert fallbacks() == {("reader", "a reason"): 250}
    assert fallbacks_in_words() == ["reader: a reason (250 times)"]


def test_a_csv_with_quotes_in_numbers_is_counted_and_explained(tmp_path, told):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},{i}\n" for i in range(2000)) + '5,"7"\n')
    ds = ps.read_csv(path).batch(500)
    assert "slower" not in ds.explain()
    assert sum(len(batch["a"]) for batch in ds) == 2001
    assert [event.who for event in told] == ["CSV"]
    assert "CSV: a block" in ds.explain()


def test_an_array_that_a_framework_has_to_be_given_as_a_copy_is_counted():
    memory = np.zeros(100_064, np.uint8)
    first = -memory.ctypes.data % 64
    assert aligned(memory[first : first + 100_000]).base is memory
    assert fallbacks() == {}
    aligned(memory[first + 1 : first + 100_000])
    assert fallbacks() == {("feed", "an array that did not begin at 64 bytes was copied"): 1}


def test_a_report_says_it_in_words_and_as_a_warning():
    record = {"t": 0.0, "kind": "fallback", "who": "JPEG", "why": "a kind that only Pillow reads", "count": 10}
    assert describe(record) == ("A slower way, 10 so far: JPEG: a kind that only Pillow reads", "warn")

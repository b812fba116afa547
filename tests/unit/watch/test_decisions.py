"""Sentences about events: of every kind that penstock emits, of other versions, and of nobody."""

from __future__ import annotations

import pytest

from penstock.watch.decisions import LONGEST_TEXT, describe
from tests.unit.watch.runs import GB, event, training


@pytest.mark.parametrize(
    ("record", "text", "weight"),
    [
        (event(1, "tune.threads", threads=6, before=4, why="it waits"), "Reading threads 4 → 6: it waits", "note"),
        (
            event(1, "tune.workers", "map(f)", workers="process", why="GIL"),
            "map(f) runs in worker processes: GIL",
            "note",
        ),
        (
            event(1, "data.skipped", "data", text="left out a.jpg: it is cut short"),
            "Left out a.jpg: it is cut short",
            "warn",
        ),
        (
            event(1, "watchdog.budget", before=GB, total=GB // 2, measured=GB, limit=2 * GB),
            "The data budget shrinks from 1 GB to 500 MB: 1 GB of 2 GB in use",
            "note",
        ),
        (
            event(1, "watchdog.read_ahead", down=True, measured=19, limit=20),
            "Retreat: read ahead, at 95% of the limit",
            "warn",
        ),
        (event(1, "watchdog.cache", down=False, measured=1, limit=2), "Return: cache, at 50% of the limit", "good"),
        (event(1, "guard.oom", rows=256, phase="backward"), "256 rows did not fit in memory (backward)", "bad"),
        (event(1, "guard.smaller", micro=8, why="w"), "Micro-batches of 8 from now on: w", "warn"),
        (event(1, "guard.resume", found=True, epoch=2, step=5), "Resumed at epoch 3, batch 5", "note"),
        (event(1, "run.death", why="killed", confirmed=False), "The training process died (probably): killed", "bad"),
        (event(1, "run.restart", attempt=2, micro=64), "Attempt 2 begins with micro-batches of 64", "warn"),
        (event(1, "run.end", status="failed", error="boom"), "The run failed: boom", "bad"),
        (event(1, "run.end", status="finished"), "The run finished", "good"),
        (event(1, "cache.dropped", nbytes=1000), "The cache gave 1 KB back to the model", "warn"),
        (
            event(1, "rowstore.written", "t.parquet", rows=9, nbytes=GB // 2, whole_nbytes=GB, left_s=11.8),
            "Rows are written to disk in random order: 500 MB of about 1 GB, about 12 s left",
            "note",
        ),
        (event(1, "rowstore.refused", "t", reason="too small"), "No row store: too small", "warn"),
        (event(1, "new.thing", "me", a=0.123456, b=True, c={"d": 1}), "me: a 0.1235, b yes, c d 1", "note"),
        (event(1, "new.failed", ""), "", "warn"),
        (event(1, "guard.oom"), "train", "bad"),  # a version that tells nothing else
    ],
)
def test_sentences(record, text, weight):
    assert describe(record) == (text, weight)


def test_a_long_text_is_cut():
    assert len(describe(event(1, "x.y", "w", text="z" * 9999))[0]) == LONGEST_TEXT


def test_every_event_of_a_run_has_words():
    assert all(describe(record)[0] for record in training(50))

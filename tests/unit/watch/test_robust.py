"""Whatever stands in the events file, the report is made, is strict JSON, and can be shown."""

from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from penstock.watch.chart_data import draw
from penstock.watch.digest import Digest
from penstock.watch.export.prometheus import exposition
from penstock.watch.export.tensorboard import encode, scalars
from penstock.watch.html import report_page
from penstock.watch.summary import summarise
from tests.unit.watch.runs import START_T

KINDS = [
    "run.start", "run.plan", "run.forecast", "run.death", "run.restart", "run.end", "train.begin", "train.progress",
    "train.epoch", "train.end", "memory.sample", "tune.threads", "watchdog.budget", "guard.oom", "guard.saved", "x.y",
]  # fmt: skip
NAMES = [
    "epoch", "epochs", "step", "steps_per_epoch", "total_steps", "samples", "samples_per_s", "waited_share", "logs",
    "micro", "seconds", "used_nbytes", "limit_nbytes", "holders", "text", "stages", "why", "signal", "status", "error",
    "config", "environment", "attempt", "before", "threads", "total", "measured", "limit", "rows", "phase", "nbytes",
]  # fmt: skip
scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["nan", "inf"])
anything = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
events = st.fixed_dictionaries(
    {"kind": st.sampled_from(KINDS), "who": st.text(max_size=5)},
    optional={"t": st.floats(START_T, START_T + 1e6) | anything, **dict.fromkeys(NAMES, anything)},
)


@settings(max_examples=40)
@given(st.lists(events, max_size=8))
def test_a_report_of_anything(records):
    records = [json.loads(json.dumps(record)) for record in records]
    digest = Digest()
    for record in records:
        digest.take(record)
    chart_data = draw(digest, name="x", now_s=START_T)
    assert "</html>" in report_page(chart_data)
    Console(file=io.StringIO(), width=80).print(summarise(chart_data))
    assert exposition([("x", chart_data["facts"])]).endswith("\n")
    for scalar_event in scalars(records):
        assert encode(*scalar_event)

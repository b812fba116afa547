"""A run's numbers in the text format that Prometheus scrapes.

Covers: names, types and labels; one line a number, runs distinguished by a label.
Does not cover: serving them (server.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {
    "used_nbytes": ("penstock_memory_used_bytes", "Memory in use by the process tree."),
    "peak_nbytes": ("penstock_memory_peak_bytes", "The most memory that was measured."),
    "limit_nbytes": ("penstock_memory_limit_bytes", "The memory limit."),
    "samples_per_s": ("penstock_samples_per_second", "Training throughput."),
    "waited_share": ("penstock_waited_ratio", "Share of the training time spent waiting for data."),
    "epoch": ("penstock_epoch", "The current epoch, from 0."),
    "total_steps": ("penstock_steps", "Optimizer steps so far."),
    "samples": ("penstock_samples", "Samples trained on so far."),
    "micro": ("penstock_micro_batch_rows", "Rows of a micro-batch."),
    "elapsed_s": ("penstock_elapsed_seconds", "Time recorded, without pauses between attempts."),
    "attempts": ("penstock_attempts", "How often the run was started."),
    "deaths": ("penstock_deaths", "How often the training process was killed."),
    "last_t": ("penstock_last_event_timestamp_seconds", "When the last event was recorded."),
}


def exposition(runs: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """All runs' numbers; those that a run does not have are left out."""
    runs = list(runs)
    lines: list[str] = []
    for fact, (name, about) in _GAUGES.items():
        rows = [(f'run="{_escape(run)}"', facts.get(fact)) for run, facts in runs]
        lines += _family(name, about, rows)
    rows = [(f'run="{_escape(run)}"', float(facts.get("status") == "running")) for run, facts in runs]
    lines += _family("penstock_running", "1 while the run goes on.", rows)
    metrics = [
        (f'run="{_escape(run)}",name="{_escape(name)}"', value)
        for run, facts in runs
        for name, value in (facts.get("logs") or {}).items()
    ]
    lines += _family("penstock_metric", "What the model reported last: loss, accuracy and others.", metrics)
    return "\n".join(lines) + "\n"


def _family(name: str, about: str, rows: list[tuple[str, Any]]) -> list[str]:
    told = [
        f"{name}{{{labels}}} {float(value):.12g}"
        for labels, value in rows
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    return [f"# HELP {name} {about}", f"# TYPE {name} gauge", *told] if told else []


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""A run as data for drawing: the same for the report, the live page and the terminal.

Covers: one JSON-ready dictionary of a run, whole or only what changed since a place.
Does not cover: drawing it (watch/page/, summary.py), taking events in (digest.py).

A place is "level.bucket.story": which grid the reader has, up to where, and how much of the story. It is what the live
page sends back after a lost connection, and it means the same to a server that was started again.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

from penstock.core.sizes import size
from penstock.watch.advice import advise, bottleneck, gather
from penstock.watch.digest import METRIC, Digest, whole
from penstock.watch.series import Bucket

SILENT_S = 75.0
"""A recorder that samples memory speaks at least every 30 s; after this long without a word the run is not there."""
LATEST = ("total_steps", "micro")
"""Series whose last value counts, not their average."""
WHOLE = ("epoch", "epochs", "step", "steps_per_epoch", "total_steps", "samples", "micro")

ChartData = dict[str, Any]


def draw(digest: Digest, *, name: str, since: str = "", now_s: float | None = None) -> ChartData:
    """A run's chart data. With `since`, the place of an earlier one, only buckets and texts that changed after it."""
    level, first, story = _parse(since)
    whole = level != digest.grid.level or first > digest.grid.last_index + 1
    first = 0 if whole else first
    chart_data: ChartData = {
        "run": name,
        "place": place(digest),
        "from": first,
        "grid": {"width_s": digest.grid.width_s, "buckets": digest.grid.last_index + 1},
        "series": {key: _numbers(series, first, key in LATEST) for key, series in digest.grid.numbers.items()},
        "memory": _memory(digest, first),
        "facts": facts_of(digest, time.time() if now_s is None else now_s),
    }
    if whole or story != digest.story:
        chart_data["story"] = _story(digest)
    return chart_data


def place(digest: Digest) -> str:
    """Up to where a reader of this digest's chart data is. The last bucket may still grow, so it is sent again."""
    return f"{digest.grid.level}.{max(0, digest.grid.last_index)}.{digest.story}"


def _parse(text: str) -> tuple[int, int, int]:
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdigit() and len(part) < 16 for part in parts):
        return -1, 0, -1
    level, first, story = (int(part) for part in parts)
    return level, first, story


def facts_of(digest: Digest, now_s: float) -> dict[str, Any]:
    """The numbers at the top of the page."""
    progress, facts = digest.progress, gather(digest)
    status = digest.status
    if status in ("running", "dead") and now_s - digest.last_t > SILENT_S:
        status = "silent"
    return {
        "status": status,
        "error": digest.error,
        "attempts": max(1, digest.attempts),
        "deaths": digest.deaths,
        "redone_steps": digest.redone_steps,
        "started_t": digest.first_t,
        "last_t": digest.last_t,
        "elapsed_s": round(digest.elapsed_s, 1),
        **{name: whole(progress.get(name)) for name in WHOLE},
        "samples_per_s": _short(progress.get("samples_per_s")),
        "left_s": _left(digest) if status == "running" else None,
        "waited_share": _short(facts.waited_share),
        "logs": {name: _short(value) if math.isfinite(value) else str(value) for name, value in digest.logs.items()},
        "used_nbytes": digest.memory.get("used_nbytes"),
        "peak_nbytes": digest.peak_nbytes or None,
        "limit_nbytes": facts.limit_nbytes or None,
        "bottleneck": bottleneck(facts),
        "events": digest.events,
    }


def _left(digest: Digest) -> float | None:
    """Seconds until the last epoch ends, at the average speed so far."""
    progress = digest.progress
    try:
        epochs, each = int(progress["epochs"]), int(progress["steps_per_epoch"])
        done = int(progress["epoch"]) * each + int(progress["step"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    steps = digest.grid.numbers.get("total_steps", {})
    if len(steps) < 2:
        return None
    first, last = min(steps), max(steps)
    passed_s = (last - first) * digest.grid.width_s
    gained = steps[last].last - steps[first].last
    return round(max(0, epochs * each - done) * passed_s / gained, 1) if gained > 0 else None


def _numbers(series: dict[int, Bucket], first: int, latest: bool) -> dict[str, list[Any]]:
    indexes = sorted(index for index in series if index >= first)
    chosen = [series[index] for index in indexes]
    return {
        "i": indexes,
        "v": [_short(bucket.last if latest else bucket.mean) for bucket in chosen],
        "lo": [_short(bucket.low) for bucket in chosen],
        "hi": [_short(bucket.high) for bucket in chosen],
    }


def _memory(digest: Digest, first: int) -> dict[str, Any]:
    samples = digest.grid.memory
    indexes = sorted(index for index in samples if index >= first)
    return {
        "i": indexes,
        "used": [samples[index].used for index in indexes],
        "limit": [samples[index].limit for index in indexes],
        "holders": {name: [samples[index].holders.get(name, 0) for index in indexes] for name in digest.grid.holders},
    }


def _story(digest: Digest) -> dict[str, Any]:
    start = digest.start
    return {
        "decisions": [asdict(decision) for decision in digest.decisions],
        "decided": sum(digest.kinds.values()),
        "kinds": digest.kinds,
        "epochs": [_epoch(epoch) for epoch in digest.epochs],
        "plan": {"text": digest.plan.get("text", ""), "stages": _stages(digest.plan.get("stages"))},
        "shuffle": list(digest.shuffles.values()),
        "forecast": str(digest.forecast.get("text", "")),
        "advice": [asdict(advice) for advice in advise(gather(digest))],
        "config": flat(start.get("config")),
        "environment": flat(start.get("environment")),
    }


def _epoch(epoch: dict[str, Any]) -> dict[str, Any]:
    logs = epoch.get("logs") or {}
    return {
        "epoch": epoch["epoch"],
        "at_s": epoch["at_s"],
        "seconds": _short(epoch.get("seconds")),
        "samples": whole(epoch.get("samples")),
        "logs": {str(name): value if isinstance(value, str) else _short(value) for name, value in logs.items()},
    }


def _stages(stages: Any) -> list[dict[str, Any]]:
    if not isinstance(stages, list):
        return []
    named = [stage for stage in stages[:100] if isinstance(stage, dict)]
    return [{"name": str(stage.get("name", "")), "nbytes": whole(stage.get("nbytes"))} for stage in named]


def flat(settings: Any) -> list[tuple[str, str]]:
    """Settings as rows of name and text; nested ones with a dot, sizes for people."""
    rows: list[tuple[str, str]] = []
    if not isinstance(settings, dict):
        return rows
    for name, item in list(settings.items())[:200]:
        if isinstance(item, dict):
            rows += [(f"{name}.{inner}", text) for inner, text in flat(item)]
        elif str(name).endswith("_nbytes") and isinstance(item, int):
            rows.append((str(name).removesuffix("_nbytes"), size(item)))
        elif item is not None:
            rows.append((str(name), str(item)[:500]))
    return rows


def metric_names(chart_data: ChartData) -> list[str]:
    """Metrics that have a series, losses first."""
    names = [name.removeprefix(METRIC) for name in chart_data["series"] if name.startswith(METRIC)]
    return sorted(names, key=lambda name: ("loss" not in name, name.removeprefix("val_"), name))


def _short(value: Any) -> float | int | None:
    """Six digits are enough to draw, and a third of the text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    if value in (float("inf"), float("-inf")):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")

"""A run on a terminal: its numbers, three small curves, findings, and the last decisions.

Covers: laying out chart data with rich.
Does not cover: what the chart data holds (chart_data.py), the HTML report (html.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.core.sizes import size
from penstock.watch.chart_data import ChartData, metric_names

BARS = "▁▂▃▄▅▆▇█"
COLORS = {"good": "green", "warn": "yellow", "bad": "red", "note": "cyan"}
STATUS = {"finished": "green", "running": "cyan", "failed": "red", "dead": "red", "silent": "yellow"}
MARKS = {"good": "■", "warn": "▲", "bad": "◆", "note": "•"}
CURVE_WIDTH = 48
LAST_DECISIONS = 12
MOST_RANKS = 32


def summarise(chart_data: ChartData) -> RenderableType:
    """A run's summary for the terminal."""
    parts: list[RenderableType] = [_heading(chart_data), _numbers(chart_data["facts"]), _curves(chart_data)]
    story = chart_data["story"]
    if chart_data.get("ranks"):
        parts.append(Panel(_ranks(chart_data["ranks"]), title="Ranks", title_align="left", border_style="dim"))
    if story["advice"]:
        parts.append(
            Panel(_advice(story["advice"]), title="What limited this run", title_align="left", border_style="dim")
        )
    if story["plan"]["stages"] or story["plan"]["text"]:
        parts.append(Panel(_plan(story["plan"]), title="Plan", title_align="left", border_style="dim"))
    if story["shuffle"]:
        parts.append(Panel(Text("\n".join(story["shuffle"])), title="Shuffle", title_align="left", border_style="dim"))
    if story["epochs"]:
        parts.append(_epochs(story["epochs"]))
    if story["decisions"]:
        parts.append(Panel(_decisions(story), title="Decisions", title_align="left", border_style="dim"))
    if story["environment"]:
        text = " · ".join(f"{name} {value}" for name, value in story["environment"])
        parts.append(Text(text, style="dim"))
    return Group(*parts)


def curve(values: Sequence[float | None], *, width: int = CURVE_WIDTH, top: float | None = None) -> str:
    """A line of block characters; `top` is the value of a full block, and then an empty one is zero."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = (0.0, top) if top else (min(known), max(known))
    text = ""
    for start, end in _parts(len(values), min(width, len(values))):
        part = [value for value in values[start:end] if value is not None]
        if not part:
            text += " "
            continue
        share = (max(part) - low) / (high - low) if high > low else 0.5
        text += BARS[max(0, min(len(BARS) - 1, math.floor(share * len(BARS))))]
    return text


def span(seconds: float | None) -> str:
    """A time for people: 4.2 s, 3 min 5 s, 2 h 10 min."""
    if seconds is None:
        return "–"
    whole = int(seconds)
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _parts(count: int, parts: int) -> list[tuple[int, int]]:
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _heading(chart_data: ChartData) -> Text:
    facts = chart_data["facts"]
    text = Text()
    text.append(chart_data["run"], style="bold")
    text.append("  ")
    text.append(facts["status"], style=STATUS.get(facts["status"], "yellow"))
    if facts["attempts"] > 1:
        text.append(f"  {facts['attempts']} attempts", style="dim")
    if facts["redone_steps"]:
        text.append(f", about {facts['redone_steps']:,} steps trained again", style="dim")
    if facts["error"]:
        text.append(f"\n{facts['error']}", style="red")
    return text


def _numbers(facts: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    epoch = (
        "–"
        if facts["epoch"] is None
        else f"{facts['epoch'] + 1}" + (f" of {facts['epochs']}" if facts["epochs"] else "")
    )
    steps = "" if facts["total_steps"] is None else f", step {facts['total_steps']:,}"
    waited = "–" if facts["waited_share"] is None else f"{facts['waited_share']:.1%} of the training time"
    speed = "–" if facts["samples_per_s"] is None else f"{facts['samples_per_s']:,.0f} samples a second"
    peak, limit = facts["peak_nbytes"], facts["limit_nbytes"]
    memory = (
        "–" if peak is None else f"peak {size(peak)}" + (f" of {size(limit)} ({peak / limit:.0%})" if limit else "")
    )
    rows = [
        ("Epoch", epoch + steps),
        ("Time", span(facts["elapsed_s"]) + (f", {span(facts['left_s'])} left" if facts["left_s"] else "")),
        ("Metrics", "  ".join(f"{name} {_metric(value)}" for name, value in facts["logs"].items()) or "–"),
        ("Speed", speed),
        ("Waited", waited),
        ("Memory", memory),
        ("Limited by", facts["bottleneck"]),
    ]
    for name, text in rows:
        table.add_row(Text(name, style="dim"), Text(text))
    return table


def _curves(chart_data: ChartData) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    series, facts = chart_data["series"], chart_data["facts"]
    for name in metric_names(chart_data)[:2]:
        values = series[f"metric:{name}"]["v"]
        table.add_row(Text(name, style="dim"), Text(curve(values), style="blue"), f"{values[-1]:.4g}")
    if "samples_per_s" in series:
        values = series["samples_per_s"]["v"]
        table.add_row(
            Text("samples/s", style="dim"),
            Text(curve(values, top=max(values) or None), style="green"),
            f"{values[-1]:,.0f}",
        )
    if chart_data["memory"]["used"]:
        used = chart_data["memory"]["used"]
        top = facts["limit_nbytes"] or max(used)
        table.add_row(Text("memory", style="dim"), Text(curve(used, top=top), style="magenta"), size(used[-1]))
    return table


def _ranks(ranks: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in (
        "rank",
        "status",
        "step",
        "samples/s",
        "most memory",
        "waits for data",
        "waits for others",
        "restarts",
    ):
        table.add_column(name, justify="right")
    for rank in ranks[:MOST_RANKS]:
        peak, limit = rank["peak_nbytes"], rank["limit_nbytes"]
        died = f" (died {rank['deaths']}x)" if rank["deaths"] else ""
        table.add_row(
            f"{rank['rank']}" + (" slowest" if rank["straggler"] else ""),
            rank["status"],
            _known(rank["step"], ",d"),
            _known(rank["samples_per_s"], ",.0f"),
            "–" if peak is None else size(peak) + (f" of {size(limit)}" if limit else ""),
            _known(rank["waited_share"], ".0%"),
            _known(rank["ranks_share"], ".0%"),
            f"{max(0, rank['attempts'] - 1)}{died}",
        )
    return table


def _known(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)


def _advice(advice: list[dict[str, str]]) -> Text:
    text = Text()
    for number, item in enumerate(advice):
        text.append("\n" if number else "")
        text.append(f"{MARKS[item['weight']]} {item['title']}. ", style=f"bold {COLORS[item['weight']]}")
        text.append(item["text"])
    return text


def _plan(plan: dict[str, Any]) -> RenderableType:
    if not plan["stages"]:
        return Text(plan["text"])
    table = Table.grid(padding=(0, 2, 0, 0))
    most = max((stage["nbytes"] or 0 for stage in plan["stages"]), default=0) or 1
    for stage in plan["stages"]:
        bar = "█" * round(24 * (stage["nbytes"] or 0) / most)
        table.add_row(
            Text(stage["name"]), Text(bar, style="blue"), "–" if stage["nbytes"] is None else size(stage["nbytes"])
        )
    return table


def _epochs(epochs: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for epoch in epochs for name in epoch["logs"]))[:6]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("epoch", *names, "time"):
        table.add_column(escape(name), justify="right")
    for epoch in epochs[-10:]:
        cells = [epoch["logs"].get(name) for name in names]
        table.add_row(str(epoch["epoch"] + 1), *(escape(_metric(value)) for value in cells), span(epoch["seconds"]))
    return table


def _metric(value: float | str | None) -> str:
    """A metric's value; NaN and infinities come as text."""
    return value if isinstance(value, str) else "–" if value is None else f"{value:.4g}"


def _decisions(story: dict[str, Any]) -> Text:
    text = Text()
    decisions = story["decisions"]
    if len(decisions) > LAST_DECISIONS:
        text.append(f"{len(decisions) - LAST_DECISIONS} earlier ones are in the HTML report\n", style="dim")
    for number, item in enumerate(decisions[-LAST_DECISIONS:]):
        text.append("\n" if number else "")
        text.append(f"{span(item['at_s']):>12}  ", style="dim")
        text.append(f"{MARKS[item['weight']]} ", style=COLORS[item["weight"]])
        text.append(item["text"])
    return text

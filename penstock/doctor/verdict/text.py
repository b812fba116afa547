"""The verdict on a terminal.

Covers: laying it out with rich: what happened, why, what cures it.
Does not cover: the HTML page (html.py).
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from penstock.core.sizes import size
from penstock.doctor.verdict.rank import Ranked
from penstock.doctor.verdict.verdict import RunVerdict

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
COLORS = {"high": "red", "medium": "yellow", "low": "cyan"}


def summarise(verdict: RunVerdict) -> RenderableType:
    """What a person wants to know, in the order in which they want to know it."""
    head = Text()
    head.append("■ " if not verdict.memory else "◆ ", style="green" if verdict.ending.kind == "finished" else "red")
    head.append(verdict.ending.text, style="bold")
    rows: list[RenderableType] = [head, Text(_where(verdict), style="dim")]
    if verdict.points:
        rows.append(Text(curve(verdict), style="cyan"))
    if doubt := verdict.doubt:
        rows.append(Text(doubt))
    for place, item in enumerate(verdict.causes, 1):
        rows.append(_cause(item, place))
    if verdict.memory and not verdict.causes:
        rows.append(Text("No known cause explains it. The lines below are where memory grew."))
    details = _details(verdict)
    if details and (verdict.causes or verdict.memory):
        rows.append(Panel(Text("\n".join(details)), title="Evidence", title_align="left", border_style="dim"))
    if verdict.save:
        rows.append(Text.assemble(("What would have saved it: ", "bold"), verdict.save))
    if verdict.resume.text:
        rows.append(Text(verdict.resume.text))
    if verdict.resume.command:
        rows.append(Text.assemble(("Go on with: ", "bold"), verdict.resume.command))
    return Group(*rows)


def curve(verdict: RunVerdict) -> str:
    """Memory over time as one line of bars; a full one is the limit."""
    points = verdict.points
    step = max(1, len(points) // WIDTH)
    bars = ""
    for place in range(0, len(points), step):
        used = max(p[1] for p in points[place : place + step])
        bars += BARS[min(7, int(8 * used / max(1, verdict.limit)))]
    return f"{bars}  peak {size(verdict.shape.peak)} of {size(verdict.limit)}"


def _where(verdict: RunVerdict) -> str:
    parts = [f"during {verdict.phase}"]
    if verdict.step:
        parts.append(f"step {verdict.step}")
    if verdict.epoch:
        parts.append(f"epoch {verdict.epoch}")
    parts += [verdict.shape.text, verdict.holder, f"limit from {verdict.limit_from}"]
    return " · ".join(part for part in parts if part)


def _cause(item: Ranked, place: int) -> RenderableType:
    body = Text()
    for line in item.shows:
        body.append(f"  {line}\n", style="dim")
    body.append(f"{item.cause.why}\n")
    body.append("Cure: ", style="bold")
    body.append(item.cause.cure)
    if item.found is not None and item.found.edits:
        body.append(f"\nPatch: penstock doctor {item.found.place.rpartition(':')[0]} --fix", style="green")
    title = Text(f"{place}. {item.cause.title} ({item.confidence})" + (f" · {item.place}" if item.place else ""))
    return Panel(body, title=title, title_align="left", border_style=COLORS[item.confidence])


def _details(verdict: RunVerdict) -> list[str]:
    found = [f"grew at {line}" for line in verdict.lines]
    found += [f"held by {name}" for name in verdict.names]
    return found + [f"probe: {line}" for line in verdict.probes]

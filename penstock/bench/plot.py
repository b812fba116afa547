"""The measurements as a picture.

Covers: one HTML page that needs nothing else (inline SVG), or a PNG where matplotlib is installed.
Does not cover: the numbers in words (report.py).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import report
from penstock.bench.facts import Facts
from penstock.bench.verdict import Verdict
from penstock.core.errors import InvalidInput

_BLUE, _GREY, _RED, _GREEN = "#1f6feb", "#9aa4b2", "#d1495b", "#2a9d5c"
_WIDTH, _LEFT, _BAR, _GAP = 760, 190, 18, 10


@dataclass(frozen=True)
class Bar:
    """One bar: its parts from left to right, each with a colour, and what stands behind it."""

    name: str
    parts: tuple[tuple[float, str], ...]
    said: str

    @property
    def length(self) -> float:
        return sum(value for value, _ in self.parts)


@dataclass(frozen=True)
class Chart:
    """Bars of one unit."""

    title: str
    bars: tuple[Bar, ...]
    legend: str = ""


def charts(facts: Facts, verdict: Verdict) -> list[Chart]:
    """Stages alone, where the time of the consumer goes, and what trials gained."""
    caps = {name: rate for name, rate in verdict.capacities.items() if name != "prepare"}
    # A stage that is a hundred times faster than the slowest would make all other bars invisible.
    top = 8 * min([*caps.values(), facts.free.rate])
    stages = [
        Bar(name, ((min(rate, top), _RED if name == verdict.bottleneck else _GREY),), f"{rate:,.0f} rows/s")
        for name, rate in caps.items()
    ]
    stages.append(Bar("pipeline", ((min(facts.free.rate, top), _BLUE),), f"{facts.free.rate:,.0f} rows/s"))
    found = [Chart("What each stage allows by itself", tuple(stages), "red: the bottleneck; long bars are cut")]
    flows = [("synthetic", facts.synthetic), ("cached", facts.cached), ("cold", facts.cold)]
    shares = tuple(
        Bar(name, ((1 - flow.waited, _GREEN), (flow.waited, _RED)), f"{flow.rate:,.0f} rows/s, waits {flow.waited:.1%}")
        for name, flow in flows
        if flow is not None
    )
    found.append(Chart("The consumer's time", shares, "green: it works; red: it waits"))
    tried = [Bar("as it is", ((1.0, _GREY),), "1.00x")]
    tried += [Bar(t.name, ((t.gain, _BLUE),), f"{t.gain:.2f}x") for t in facts.trials if t.gain is not None]
    if len(tried) > 1:
        found.append(Chart("Tried on a sample, files in memory", tuple(tried)))
    return found


def write_plot(path: str | Path, facts: Facts, verdict: Verdict) -> None:
    """Write an .html page or a .png picture."""
    place = Path(path)
    check_plot(place)
    if place.suffix == ".png":
        _write_png(place, facts, verdict)
    else:
        place.write_text(page(facts, verdict))


def check_plot(path: str | Path) -> None:
    """Refuse a name that could not be written, before minutes are spent on measuring."""
    place = Path(path)
    if place.suffix not in (".html", ".png"):
        raise InvalidInput(f"--plot {place}: the name must end in .html or .png.")
    if not place.parent.is_dir():
        raise InvalidInput(f"--plot {place}: there is no folder {str(place.parent)!r}.")
    if place.suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise InvalidInput(f"--plot {place}: PNG needs matplotlib; give a name that ends in .html.") from error


def page(facts: Facts, verdict: Verdict) -> str:
    """A page that opens anywhere: no script, no network."""
    told = html.escape(report.text(facts, verdict))
    pictures = "\n".join(f"<h2>{html.escape(c.title)}</h2>\n{_svg(c)}" for c in charts(facts, verdict))
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>penstock bench</title>"
        f"<style>body{{font:15px system-ui;max-width:{_WIDTH + 40}px;margin:2em auto;padding:0 1em}}"
        f"h1{{font-size:20px}}h2{{font-size:15px;margin:1.6em 0 .4em}}pre{{background:#f5f6f8;padding:1em;"
        f"overflow:auto;font-size:13px}}text{{font:13px system-ui}}</style>"
        f"<h1>{html.escape(verdict.sentence)}</h1>\n{pictures}\n<pre>{told}</pre></html>\n"
    )


def _svg(chart: Chart) -> str:
    top = max(bar.length for bar in chart.bars) or 1.0
    room = _WIDTH - _LEFT - 200
    height = len(chart.bars) * (_BAR + _GAP) + (22 if chart.legend else 0)
    lines = [f"<svg viewBox='0 0 {_WIDTH} {height}' width='100%' role='img' aria-label='{html.escape(chart.title)}'>"]
    y = 0
    for bar in chart.bars:
        middle = y + _BAR - 5
        lines.append(f"<text x='{_LEFT - 8}' y='{middle}' text-anchor='end'>{html.escape(bar.name)}</text>")
        x = float(_LEFT)
        for value, colour in bar.parts:
            width = value / top * room
            lines.append(f"<rect x='{x:.1f}' y='{y}' width='{max(width, 0):.1f}' height='{_BAR}' fill='{colour}'/>")
            x += width
        lines.append(f"<text x='{x + 6:.1f}' y='{middle}'>{html.escape(bar.said)}</text>")
        y += _BAR + _GAP
    if chart.legend:
        lines.append(f"<text x='{_LEFT}' y='{y + 12}' fill='#667'>{html.escape(chart.legend)}</text>")
    return "\n".join([*lines, "</svg>"])


def _write_png(path: Path, facts: Facts, verdict: Verdict) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found: Sequence[Chart] = charts(facts, verdict)
    figure = Figure(figsize=(8, 1 + sum(0.6 + 0.35 * len(c.bars) for c in found)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(found), 1, height_ratios=[len(c.bars) + 1 for c in found], squeeze=False)[:, 0]
    for axis, chart in zip(axes, found):
        for place, bar in enumerate(reversed(chart.bars)):
            left = 0.0
            for value, colour in bar.parts:
                axis.barh(place, value, left=left, color=colour)
                left += value
            axis.text(left, place, f" {bar.said}", va="center", fontsize=8)
        axis.set_yticks(range(len(chart.bars)), [bar.name for bar in reversed(chart.bars)], fontsize=8)
        axis.set_xticks([])
        axis.set_xlim(0, 1.45 * max(bar.length for bar in chart.bars) or 1.0)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_title(chart.title, fontsize=9, loc="left")
    figure.suptitle(verdict.sentence, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)

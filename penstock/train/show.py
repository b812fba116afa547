"""How a run is shown: a live panel on a terminal, lines elsewhere, JSON lines for programs.

Covers: the three displays, which all take the same events.
Does not cover: what the events mean (train/scene.py), pages and reports (watch/).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.core.sizes import size
from penstock.train.scene import Scene, numbers
from penstock.watch.run_folder import Record

LINE_EVERY_S = 5.0
"""Progress lines come no more often than this; decisions always come."""
BAR = 40
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue")
_OFTEN = ("train.progress", "train.preparing")


class Display(Protocol):
    """Something that shows events while they come."""

    scene: Scene

    def start(self) -> None:
        """Begin to show."""

    def take(self, record: Record) -> None:
        """Show one more event."""

    def say(self, text: str) -> None:
        """A sentence for the person, now."""

    def stop(self) -> None:
        """No more events; leave the screen tidy."""


def make_display(*, as_json: bool, out: TextIO | None = None) -> Display:
    """JSON lines if asked for; a panel on a terminal; lines of text otherwise."""
    if as_json:
        return JsonLines(out or sys.stdout)
    console = Console(file=out or sys.stdout)
    return Panel(console) if console.is_terminal else Lines(out or sys.stdout)


class JsonLines:
    """Every event as one line of JSON on stdout; sentences go to stderr."""

    def __init__(self, out: TextIO) -> None:
        self.scene = Scene()
        self._out = out

    def start(self) -> None:
        return None

    def take(self, record: Record) -> None:
        self.scene.take(record)
        print(json.dumps(record, separators=(",", ":")), file=self._out, flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def stop(self) -> None:
        return None


class Lines:
    """Plain lines for logs: decisions as they come, progress every few seconds."""

    def __init__(self, out: TextIO) -> None:
        self.scene = Scene()
        self._out = out
        self._next_s: dict[str, float] = {}

    def start(self) -> None:
        return None

    def take(self, record: Record) -> None:
        line = self.scene.take(record)
        if line is None:
            return
        kind, now_s = record["kind"], time.monotonic()
        if kind in _OFTEN:
            if now_s < self._next_s.get(kind, 0.0):
                return
            self._next_s[kind] = now_s + LINE_EVERY_S
        print(f"{time.strftime('%H:%M:%S', time.localtime(float(record['t'])))} {line}", file=self._out, flush=True)

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def stop(self) -> None:
        return None


class Panel:
    """A panel that redraws itself; what is worth keeping scrolls away above it."""

    def __init__(self, console: Console) -> None:
        self.scene = Scene()
        self._console = console
        self._live = Live(console=console, auto_refresh=True, refresh_per_second=4, get_renderable=self._draw)

    def start(self) -> None:
        self._live.start()

    def take(self, record: Record) -> None:
        line = self.scene.take(record)
        if line is not None and record["kind"] not in _OFTEN:
            self._console.print(Text(line, style="dim" if not record["kind"].startswith("run.death") else "red"))

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def stop(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        return draw(self.scene)


def draw(scene: Scene) -> RenderableType:
    """The panel: where the run is, how fast, how well, who holds the memory, what was decided."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(*_progress(scene))
    if scene.stage == "training":
        table.add_row("speed", f"{scene.samples_per_s:,.0f} samples/s, the model waited {scene.waited:.0%} of the time")
        table.add_row("model", numbers(scene.logs) or "-")
    if scene.limit:
        table.add_row("memory", memory_bar(scene))
        table.add_row("", _holders(scene))
    for text in scene.decisions:
        table.add_row("·", Text(text, style="dim"))
    return Group(table)


def _progress(scene: Scene) -> tuple[str, RenderableType]:
    if scene.stage == "preparing":
        return "prepare", f"one pass over the data: {scene.rows:,} rows"
    if scene.stage != "training" or not scene.epochs:
        return scene.stage, Text(scene.text or "...")
    grid = Table.grid(padding=(0, 1))
    eta = "" if scene.eta_s is None else f"about {_duration(scene.eta_s)} left"
    micro = f", micro-batches of {scene.micro}" if scene.micro and scene.attempt > 1 else ""
    steps = f"step {scene.step}" + (f"/{scene.steps}" if scene.steps else "")
    bar = ProgressBar(total=scene.steps or 1, completed=scene.step if scene.steps else 0, width=BAR)
    grid.add_row(bar, f"{steps}{micro}  {eta}")
    return f"epoch {scene.epoch + 1}/{scene.epochs}", grid


def memory_bar(scene: Scene) -> Text:
    """Use against the limit, coloured by holder."""
    bar, filled = Text(), 0
    parts = [*_largest(scene), ("", 0)]
    for (_, nbytes), colour in zip(parts, (*_COLOURS, "white"), strict=False):
        cells = min(BAR - filled, round(BAR * nbytes / max(1, scene.limit)))
        bar.append("█" * cells, style=colour)
        filled += cells
    used = min(BAR, round(BAR * scene.used / max(1, scene.limit)))
    bar.append("█" * max(0, used - filled), style="white")
    bar.append("░" * max(0, BAR - max(used, filled)), style="dim")
    bar.append(f" {size(scene.used)} of {size(scene.limit)} ({scene.used / max(1, scene.limit):.0%})")
    return bar


def _holders(scene: Scene) -> Text:
    text = Text()
    for (name, nbytes), colour in zip(_largest(scene), _COLOURS, strict=False):
        text.append("■ ", style=colour).append(f"{name} {size(nbytes)}  ", style="dim")
    return text


def _largest(scene: Scene) -> list[tuple[str, int]]:
    return sorted(scene.holders.items(), key=lambda item: -item[1])[: len(_COLOURS)]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def summary(scene: Scene, metrics: dict[str, Any]) -> str:
    """The last line of a run that finished."""
    units = dict(metrics.get("in_units_of_the_target") or {})
    meant = f" (in the target's own units: {numbers(units)})" if units else ""
    return f"done: {numbers(dict(metrics.get('final') or scene.logs))}{meant}; peak memory {size(scene.peak)}"

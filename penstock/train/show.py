"""How a run is shown: a live panel on a terminal, lines elsewhere, JSON lines for programs.

Covers: the three displays, which all take the same events.
Does not cover: what the events mean (run_state.py), pages and reports (watch/).
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
from penstock.train.run_state import RunState, numbers
from penstock.watch.run_folder import Record

LINE_EVERY_S = 5.0
"""Progress lines come no more often than this; decisions always come."""
BAR = 40
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue")
_OFTEN = ("train.progress", "train.preparing", "rowstore.written")


class Display(Protocol):
    """Something that shows events while they come."""

    state: RunState

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
        self.state = RunState()
        self._out = out

    def start(self) -> None:
        return None

    def take(self, record: Record) -> None:
        self.state.take(record)
        print(json.dumps(record, separators=(",", ":")), file=self._out, flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def stop(self) -> None:
        return None


class Lines:
    """Plain lines for logs: decisions as they come, progress every few seconds."""

    def __init__(self, out: TextIO) -> None:
        self.state = RunState()
        self._out = out
        self._next_s: dict[str, float] = {}
        self._quiet_since_s = time.monotonic()

    def start(self) -> None:
        return None

    def take(self, record: Record) -> None:
        line = self.state.take(record)
        kind, now_s = record["kind"], time.monotonic()
        if line is None:
            self._tell_waiting(record, now_s)
            return
        self._quiet_since_s = now_s
        if kind in _OFTEN:
            if now_s < self._next_s.get(kind, 0.0):
                return
            self._next_s[kind] = now_s + LINE_EVERY_S
        self._print(record, line)

    def _tell_waiting(self, record: Record, now_s: float) -> None:
        """Before the first step nothing may happen for long: say what is being waited for, and since when."""
        what = self.state.waiting_for
        if what is not None and now_s >= self._quiet_since_s + LINE_EVERY_S:
            self._quiet_since_s = now_s
            self._print(record, f"still {what}: {self.state.now_s - self.state.since_s:.0f} s so far")

    def _print(self, record: Record, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S', time.localtime(float(record['t'])))} {line}", file=self._out, flush=True)

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def stop(self) -> None:
        return None


class Panel:
    """A panel that redraws itself; what is worth keeping scrolls away above it."""

    def __init__(self, console: Console) -> None:
        self.state = RunState()
        self._console = console
        self._live = Live(console=console, auto_refresh=True, refresh_per_second=4, get_renderable=self._draw)

    def start(self) -> None:
        self._live.start()

    def take(self, record: Record) -> None:
        line = self.state.take(record)
        if line is not None and record["kind"] not in _OFTEN:
            self._console.print(Text(line, style="dim" if not record["kind"].startswith("run.death") else "red"))

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def stop(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        return draw(self.state)


def draw(state: RunState) -> RenderableType:
    """The panel: where the run is, how fast, how well, who holds the memory, what was decided."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(*_progress(state))
    if state.stage == "training":
        table.add_row("speed", f"{state.samples_per_s:,.0f} samples/s, the model waited {state.waited:.0%} of the time")
        table.add_row("model", numbers(state.logs) or "-")
    if state.limit:
        table.add_row("memory", memory_bar(state))
        table.add_row("", _holders(state))
    for text in state.decisions:
        table.add_row("·", Text(text, style="dim"))
    return Group(table)


def _progress(state: RunState) -> tuple[str, RenderableType]:
    waited = f"{max(0.0, time.time() - state.since_s):.0f} s" if state.since_s else ""
    if state.stage == "preparing":
        return "prepare", f"one pass over the data: {state.rows:,} rows, {waited}"
    if state.waiting_for is not None:
        return "waiting", Text(f"{state.stage} {waited}".rstrip())
    if state.stage != "training" or not state.epochs:
        return state.stage, Text(state.text or "...")
    grid = Table.grid(padding=(0, 1))
    eta = "" if state.eta_s is None else f"about {_duration(state.eta_s)} left"
    micro = f", micro-batches of {state.micro}" if state.micro and state.attempt > 1 else ""
    steps = f"step {state.step}" + (f"/{state.steps}" if state.steps else "")
    bar = ProgressBar(total=state.steps or 1, completed=state.step if state.steps else 0, width=BAR)
    grid.add_row(bar, f"{steps}{micro}  {eta}")
    return f"epoch {state.epoch + 1}/{state.epochs}", grid


def memory_bar(state: RunState) -> Text:
    """Use against the limit, coloured by holder."""
    bar, filled = Text(), 0
    parts = [*_largest(state), ("", 0)]
    for (_, nbytes), colour in zip(parts, (*_COLOURS, "white"), strict=False):
        cells = min(BAR - filled, round(BAR * nbytes / max(1, state.limit)))
        bar.append("█" * cells, style=colour)
        filled += cells
    used = min(BAR, round(BAR * state.used / max(1, state.limit)))
    bar.append("█" * max(0, used - filled), style="white")
    bar.append("░" * max(0, BAR - max(used, filled)), style="dim")
    bar.append(f" {size(state.used)} of {size(state.limit)} ({state.used / max(1, state.limit):.0%})")
    return bar


def _holders(state: RunState) -> Text:
    text = Text()
    for (name, nbytes), colour in zip(_largest(state), _COLOURS, strict=False):
        text.append("■ ", style=colour).append(f"{name} {size(nbytes)}  ", style="dim")
    return text


def _largest(state: RunState) -> list[tuple[str, int]]:
    return sorted(state.holders.items(), key=lambda item: -item[1])[: len(_COLOURS)]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def summary(state: RunState, metrics: dict[str, Any]) -> str:
    """The last line of a run that finished."""
    units = dict(metrics.get("in_units_of_the_target") or {})
    meant = f" (in the target's own units: {numbers(units)})" if units else ""
    return f"done: {numbers(dict(metrics.get('final') or state.logs))}{meant}; peak memory {size(state.peak)}"

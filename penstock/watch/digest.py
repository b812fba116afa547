"""A run's events taken in one by one: what is known about the run so far, in bounded memory.

Covers: status, progress, memory, metrics, decisions, epochs, plan; several attempts in one file; unknown events.
Does not cover: reading the file (run_folder.py), judging it (advice.py), showing it (chart_data.py).

Time is counted from the run's first event, and the hours between an attempt and the next are left out: a run resumed
on the next day is drawn without the night.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock.watch.decisions import TimelineMark, describe
from penstock.watch.run_folder import Record
from penstock.watch.series import Grid

GAP_S = 60.0
"""A recorder samples memory at least every 30 s: after twice that, the recorder was not running."""
MOST_DECISIONS = 150
MOST_EPOCHS = 200
MOST_TEXT = 20_000
MOST_SHUFFLES = 20
UNMARKED = ("run.plan", "run.forecast", "train.epoch", "train.preparing", "rowstore.written", "shuffle.mixes")
"""Events that have a place of their own on the page, or come in series."""
METRIC = "metric:"
"""Series of what the model reports carry this in front, so that they never meet penstock's own."""


class Digest:
    """What a run's events say. `take` them in order, then read the attributes; all of them are bounded in size."""

    def __init__(self, most_buckets: int | None = None) -> None:
        self.grid = Grid() if most_buckets is None else Grid(most_buckets)
        self.events = 0
        self.story = 0
        """Counts what changes the story: everything but progress and memory samples."""
        self.start: Record = {}
        self.status = "empty"
        self.error = ""
        self.attempts = 0
        self.deaths = 0
        self.redone_steps = 0
        """Steps that were trained again, because they came after the checkpoint that a restart went on from."""
        self.first_t = self.last_t = 0.0
        self.elapsed_s = 0.0
        self.progress: Record = {}
        self.logs: dict[str, float] = {}
        self.memory: Record = {}
        self.peak_nbytes = 0
        self.trained_s = self.waited_s = 0.0
        self.plan: Record = {}
        self.forecast: Record = {}
        self.shuffles: dict[str, str] = {}
        """How well the shuffle of each source mixes."""
        self.epochs: deque[Record] = deque(maxlen=MOST_EPOCHS)
        self.best: dict[str, tuple[float, int]] = {}
        """Lowest and last value and epoch of each metric that was reported at an epoch's end."""
        self.kinds: dict[str, int] = {}
        self.first_decisions: list[TimelineMark] = []
        self.last_decisions: deque[TimelineMark] = deque(maxlen=MOST_DECISIONS)
        self.grave_decisions: deque[TimelineMark] = deque(maxlen=MOST_DECISIONS)
        self.first_not_finite: dict[str, int | None] = {}
        self._shift_s = 0.0
        self._last_progress_t = self._epoch_t = self._last_waited_s = 0.0
        self._takers: dict[str, Callable[[Record, float], None]] = {
            "run.start": self._take_start,
            "run.plan": self._take_plan,
            "run.forecast": self._take_forecast,
            "shuffle.mixes": self._take_shuffle,
            "run.death": self._take_death,
            "run.end": self._take_end,
            "guard.resume": self._take_resume,
            "train.begin": self._take_begin,
            "train.end": self._take_train_end,
            "train.progress": self._take_progress,
            "train.epoch": self._take_epoch,
            "memory.sample": self._take_memory,
        }

    def take(self, record: Record) -> None:
        """Take in the next event. One that is not understood counts as a decision; one without a time is left out."""
        kind, t = record["kind"], record.get("t")
        if not isinstance(t, (int, float)) or not math.isfinite(t):
            return
        at_s = self._at(t, kind)
        self.events += 1
        if self.status in ("empty", "dead") and kind != "run.death":
            self.status = "running"
        taker = self._takers.get(kind)
        if taker is not None:
            try:
                taker(record, at_s)
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError):  # written by another version
                self._count("record.odd")
        if kind not in ("train.progress", "memory.sample"):
            self._note(record, at_s)

    @property
    def decisions(self) -> list[TimelineMark]:
        """Decisions in order: the first, the last, and the grave ones in between."""
        shown = {id(d): d for d in (*self.first_decisions, *self.grave_decisions, *self.last_decisions)}
        return sorted(shown.values(), key=lambda decision: decision.at_s)

    def _at(self, t: float, kind: str) -> float:
        """Seconds since the run's start, without the time when it was not recorded."""
        if not self.events:
            self.first_t = self.last_t = t
        gap_s = t - self.last_t
        alive = GAP_S if kind == "run.start" or self.memory else math.inf
        if gap_s > alive or gap_s < -GAP_S:
            self._shift_s += gap_s - (1.0 if gap_s > 0 else 0.0)
        self.last_t = t
        at_s = max(0.0, t - self.first_t - self._shift_s)
        self.elapsed_s = max(self.elapsed_s, at_s)
        return at_s

    def _note(self, record: Record, at_s: float) -> None:
        """Put an event on the timeline."""
        self.story += 1
        kind = record["kind"]
        self._count(kind)
        if kind in UNMARKED:
            return
        text, weight = describe(record)
        decision = TimelineMark(round(at_s, 2), kind, text, weight)
        if len(self.first_decisions) < MOST_DECISIONS:
            self.first_decisions.append(decision)
        else:
            self.last_decisions.append(decision)
            if weight == "bad":
                self.grave_decisions.append(decision)

    def _count(self, kind: str) -> None:
        if kind in self.kinds or len(self.kinds) < MOST_DECISIONS:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def _take_start(self, record: Record, at_s: float) -> None:
        self.attempts += 1
        self.status, self.error = "running", ""
        self.start = {**self.start, **record}

    def _take_plan(self, record: Record, at_s: float) -> None:
        self.plan = {**record, "text": str(record.get("text", ""))[:MOST_TEXT]}

    def _take_forecast(self, record: Record, at_s: float) -> None:
        self.forecast = {**record, "text": str(record.get("text", ""))[:MOST_TEXT]}

    def _take_shuffle(self, record: Record, at_s: float) -> None:
        who = str(record.get("who", ""))
        if who in self.shuffles or len(self.shuffles) < MOST_SHUFFLES:
            self.shuffles[who] = describe(record)[0]

    def _take_death(self, record: Record, at_s: float) -> None:
        self.deaths += 1
        self.status = "dead"
        self.error = str(record.get("why") or record.get("signal") or "")

    def _take_end(self, record: Record, at_s: float) -> None:
        self.status = str(record.get("status", "finished"))
        self.error = str(record.get("error") or "")

    def _take_resume(self, record: Record, at_s: float) -> None:
        reached, saved = whole(self.progress.get("total_steps")), whole(record.get("total_steps"))
        if reached is not None and saved is not None:
            self.redone_steps += max(0, reached - saved)

    def _take_begin(self, record: Record, at_s: float) -> None:
        self._last_progress_t = record["t"]

    def _take_train_end(self, record: Record, at_s: float) -> None:
        steps = whole(record.get("total_steps"))
        if steps is not None:
            self.progress = {**self.progress, "total_steps": steps}
            self.grid.add(at_s, "total_steps", steps)

    def _take_progress(self, record: Record, at_s: float) -> None:
        self.progress = record
        add = self.grid.add
        for name in ("samples_per_s", "waited_share", "total_steps", "micro"):
            value = record.get(name)
            if type(value) is float or type(value) is int:
                add(at_s, name, value)
        logs = record.get("logs")
        if logs:
            self._take_logs(logs, at_s, record)
        self._take_wait(record)

    def _take_wait(self, record: Record) -> None:
        """Add the time since the last progress to what was trained, and the waiting in it."""
        passed_s = record["t"] - self._last_progress_t if self._last_progress_t else 0.0
        self._last_progress_t = record["t"]
        share, told_s = record.get("waited_share"), number(record.get("waited_s"))
        if 0 < passed_s < GAP_S and isinstance(share, (int, float)) and math.isfinite(share):
            self.trained_s += passed_s
            self.waited_s += passed_s * min(1.0, max(0.0, share))
        elif self._epoch_t and told_s is not None and math.isfinite(told_s):
            # The first progress after an epoch: part of the time went to validation. Only the wait for the first
            # batch of the new epoch is known to be training time.
            begun_s = min(max(0.0, told_s - self._last_waited_s), max(0.0, record["t"] - self._epoch_t))
            self.trained_s += begun_s
            self.waited_s += begun_s
        self._epoch_t, self._last_waited_s = 0.0, told_s if told_s is not None and math.isfinite(told_s) else 0.0

    def _take_logs(self, logs: Mapping[str, Any], at_s: float, record: Record) -> None:
        for name, told in logs.items():
            value = number(told)
            if value is None:
                continue
            self.logs[name] = value
            self.grid.add(at_s, METRIC + name, value)
            if not math.isfinite(value) and name not in self.first_not_finite:
                self.first_not_finite[name] = record.get("total_steps") or self.progress.get("total_steps")

    def _take_epoch(self, record: Record, at_s: float) -> None:
        logs = record.get("logs") or {}
        self._take_logs(logs, at_s, record)
        self._last_progress_t, self._epoch_t = 0.0, record["t"]  # validation and saving are no waiting
        epoch = int(record.get("epoch", len(self.epochs)))
        self.epochs.append({**record, "epoch": epoch, "at_s": round(at_s, 2)})
        # The last progress may be of the epoch before: it is reported twice a second, and epochs may be shorter.
        at_end = {"step": self.progress.get("steps_per_epoch") or self.progress.get("step")}
        self.progress = {**self.progress, "epoch": epoch, "epochs": record.get("epochs"), **at_end}
        for name, told in logs.items():
            value = number(told)
            if value is not None and math.isfinite(value) and (name not in self.best or value < self.best[name][0]):
                self.best[name] = (value, epoch)

    def _take_memory(self, record: Record, at_s: float) -> None:
        used, limit = int(record["used_nbytes"]), int(record.get("limit_nbytes") or 0)
        holders = {str(k): int(v) for k, v in (record.get("holders") or {}).items() if isinstance(v, (int, float))}
        self.memory = {"used_nbytes": used, "limit_nbytes": limit, "holders": holders}
        self.peak_nbytes = max(self.peak_nbytes, used)
        self.grid.add_memory(at_s, used, limit, holders)


def number(told: Any) -> float | None:
    """A number as events carry it: NaN and infinities come as text, since JSON has no word for them."""
    if isinstance(told, bool):
        return None
    if isinstance(told, (int, float)):
        return float(told)
    if isinstance(told, str) and told in ("nan", "inf", "-inf"):
        return float(told)
    return None


def whole(told: Any) -> int | None:
    """A whole number as events carry it; None for anything else, and for what no script could count."""
    if isinstance(told, (int, float)) and not isinstance(told, bool) and abs(told) < 2**53:
        return int(told)
    return None

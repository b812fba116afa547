"""The state of a run, from its events.

Covers: taking in one event after the other, and the sentences and numbers that a display needs.
Does not cover: drawing (show.py), reading the file of events (supervisor.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.core.sizes import size
from penstock.watch.decisions import describe
from penstock.watch.run_folder import Record

DECISIONS = 4
SMOOTH = 0.3
"""Weight of the newest speed in the one that is shown."""
LEAST_TOLD_S = 0.1
_BEFORE_TRAINING = ("starting", "preparing", "forecasting", "loading", "building")
_QUIET = (
    "run.ended", "run.plan", "run.start", "run.end", "run.forecast", "record.thinned", "guard.devices",
    "guard.oom_score", "guard.stopped", "guard.restart", "guard.set_aside", "watchdog.budget", "budget.overdraft",
    "shuffle.mixes",
)  # fmt: skip
"""Events that are no decision, or one of very many; all of them are in the record."""


@dataclass
class RunState:
    """The state that a display shows. `take` events in their order."""

    stage: str = "starting"
    text: str = ""
    rows: int = 0
    attempt: int = 1
    pid: int | None = None
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int | None = None
    micro: int | None = None
    samples_per_s: float = 0.0
    steps_per_s: float = 0.0
    waited: float = 0.0
    logs: dict[str, float] = field(default_factory=dict)
    used: int = 0
    limit: int = 0
    peak: int = 0
    holders: dict[str, int] = field(default_factory=dict)
    decisions: deque[str] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    saved_step: int | None = None
    now_s: float = 0.0
    since_s: float = 0.0
    """When the last event came, and when the present stage began."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time to the first step went."""
    marks: dict[str, float] = field(default_factory=dict)
    """When the run started, a forecast was asked for, the framework was loaded, and training began."""
    status: str = ""
    error: str = ""
    _last: tuple[float, int] | None = None

    def take(self, record: Record) -> str | None:
        """Take in an event; returns a line worth printing where lines are printed, else None."""
        kind = record["kind"]
        self.now_s = float(record.get("t") or self.now_s)
        teller = getattr(self, "_" + kind.replace(".", "_"), None)
        if teller is not None:
            stage = self.stage
            found: str | None = teller(record)
            if self.stage != stage:
                self.since_s = self.now_s
            return found
        if kind in _QUIET or kind.startswith("forecast."):
            return None
        return self._decide(record)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of training at the present speed; None while that is not known."""
        if self.steps is None or not self.steps_per_s or self.stage != "training":
            return None
        left = self.steps * (self.epochs - self.epoch) - self.step
        return max(0.0, left / self.steps_per_s)

    def _decide(self, record: Record) -> str:
        text, _ = describe(record)
        self.decisions.append(text)
        return text

    @property
    def waiting_for(self) -> str | None:
        """What is going on before the first step, in words; None once training has begun."""
        return self.stage if self.stage.startswith(_BEFORE_TRAINING) else None

    def _run_start(self, record: Record) -> str | None:
        self.stage, self.status, self.error = "starting", "", ""
        self.seconds, self.marks, self.since_s = {}, {"start": self.now_s}, self.now_s
        self.attempt, self.pid = int(record.get("attempt", 1)), record.get("pid")
        self.limit = int(record.get("limit_nbytes") or 0)
        self._last = None
        return f"attempt {self.attempt}, limit {size(self.limit)}"

    def _train_preparing(self, record: Record) -> str | None:
        first = self.stage != "preparing"
        self.stage, self.rows = "preparing", int(record["rows"])
        if not first:
            return f"preparing: {self.rows:,} rows read"
        meanwhile = f"; {record['loading']} is loaded meanwhile" if record.get("loading") else ""
        return f"preparing: one pass over the data{meanwhile}"

    def _rowstore_written(self, record: Record) -> str | None:
        """The first batch waits: progress, shown like that of preparing."""
        self.text = describe(record)[0]
        return self.text

    def _train_prepared(self, record: Record) -> str | None:
        self.text = str(record["text"])
        self.seconds["preparing"] = float(record["seconds"])
        left_out = "".join(f"; {name} is left out: {why}" for name, why in dict(record.get("ignored") or {}).items())
        missing = int(record.get("without_target") or 0)
        if missing:
            left_out += f"; {missing:,} {'row' if missing == 1 else 'rows'} without a target"
            left_out += f" {'is' if missing == 1 else 'are'} left out"
        return f"prepared in {record['seconds']:.1f} s: {record['train']:,} rows to train on, {self.text}{left_out}"

    def _train_data(self, record: Record) -> str | None:
        self.text, self.steps = str(record["text"]), record.get("steps")
        self.rows = int(record.get("train_rows") or 0)
        self.stage = f"loading {record.get('backend') or 'the framework'}"
        if not record.get("will_forecast"):
            return self.stage
        self.marks["asked"] = self.now_s
        loading, self.stage = self.stage, "forecasting"
        return f"{loading} to try a few small steps: will a batch fit?"

    def _run_forecast(self, record: Record) -> str | None:
        text = _forecast_line(record)
        self.decisions.append(text)
        if self.stage == "forecasting":
            self.seconds["forecasting"] = self.now_s - self.marks.get("asked", self.now_s)
            self.stage = "loading the framework"
        return text

    def _train_loaded(self, record: Record) -> str | None:
        name, waited_s = str(record["who"]), float(record["waited_s"])
        self.seconds[f"waiting for {name}"], self.marks["loaded"] = waited_s, self.now_s
        self.stage = "building the model and compiling its first step"
        beside = float(record["seconds"]) - waited_s
        shared = f", {beside:.1f} s of it beside the preparation" if record.get("beside") and beside > 0 else ""
        return f"{name} loaded in {record['seconds']:.1f} s{shared}; building the model and compiling its first step"

    def _guard_resume(self, record: Record) -> str | None:
        return self._decide(record)

    def _train_begin(self, record: Record) -> str | None:
        self.seconds["building the model"] = self.now_s - self.marks.get("loaded", self.now_s)
        self.marks["begun"] = self.now_s
        self.stage, self.epoch, self.epochs = "training", int(record["epoch"]), int(record["epochs"])
        self.step, self._last = int(record["step"]), None
        where = f" at epoch {self.epoch + 1}, batch {self.step + 1}" if record.get("resumed") else ""
        return f"training {'goes on' if where else 'begins'}{where}"

    def _train_progress(self, record: Record) -> str | None:
        self.stage, self.epoch, self.epochs = "training", int(record["epoch"]), int(record["epochs"])
        self.step, self.micro = int(record["step"]), record.get("micro")
        self.steps = record.get("steps_per_epoch") or self.steps
        self.samples_per_s = _smooth(self.samples_per_s, float(record["samples_per_s"]))
        self.waited = float(record["waited_share"])
        self.logs = dict(record.get("logs") or {})
        now, done = float(record["t"]), int(record["total_steps"])
        if self._last is not None and now > self._last[0]:
            self.steps_per_s = _smooth(self.steps_per_s, (done - self._last[1]) / (now - self._last[0]))
        first = self._first_step() if self._last is None else ""
        self._last = (now, done)
        total = f"/{self.steps}" if self.steps else ""
        return (
            f"epoch {self.epoch + 1}/{self.epochs} step {self.step}{total}  {self.samples_per_s:,.0f} samples/s  "
            f"{numbers(self.logs)}  memory {size(self.used)}/{size(self.limit)}  waited {self.waited:.0%}{first}"
        )

    def _first_step(self) -> str:
        """After how long the first step was done, and where the time went."""
        start, begun = self.marks.get("start"), self.marks.get("begun")
        self.marks = {}
        if start is None or begun is None:
            return ""
        self.seconds["the step"] = self.now_s - begun
        told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items() if seconds >= LEAST_TOLD_S)
        return f"  (first step after {self.now_s - start:.1f} s: {told})" if told else ""

    def _train_epoch(self, record: Record) -> str | None:
        self.logs = dict(record.get("logs") or {})
        return (
            f"epoch {int(record['epoch']) + 1}/{record['epochs']} done in {record['seconds']:.1f} s: "
            f"{numbers(self.logs)}"
        )

    def _train_end(self, record: Record) -> str | None:
        self.stage = "stopping" if record.get("stopped") else "saving"
        return None

    def _guard_saved(self, record: Record) -> str | None:
        self.saved_step = int(record["step"])
        return None

    def _memory_sample(self, record: Record) -> str | None:
        self.used, self.limit = int(record["used_nbytes"]), int(record["limit_nbytes"])
        self.peak = max(self.peak, self.used)
        self.holders = {str(name): int(n) for name, n in dict(record["holders"]).items()}
        return None

    def _run_end(self, record: Record) -> str | None:
        self.stage, self.status, self.error = "ended", str(record["status"]), str(record.get("error") or "")
        return None


def _forecast_line(record: Record) -> str:
    """The forecast in a sentence."""
    if record.get("fits") is None:
        return str(record.get("text", ""))[:300]
    peak = f"peak {size(int(record['peak_nbytes']))} of {size(int(record['limit_nbytes']))}"
    if record["fits"]:
        if record.get("obvious"):
            return str(record["text"])
        return f"forecast: a batch of {record['batch']} fits ({peak})"
    if not record.get("micro"):
        return f"forecast: not even one row fits ({peak}); it is tried all the same"
    return f"forecast: a batch of {record['batch']} does not fit ({peak}); micro-batches of {record['micro']} do"


def numbers(logs: dict[str, Any]) -> str:
    """Metrics in a line."""
    return " ".join(f"{name} {value:.4g}" for name, value in logs.items() if isinstance(value, (int, float)))


def _smooth(before: float, now: float) -> float:
    return now if not before else before + SMOOTH * (now - before)

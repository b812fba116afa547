"""What a run looks like at this moment, told by its events.

Covers: taking in one event after the other, and the sentences and numbers that a display needs.
Does not cover: drawing (train/show.py), reading the file of events (train/parent.py).
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
_QUIET = (
    "run.ended", "run.plan", "run.start", "run.end", "run.forecast", "record.thinned", "guard.devices",
    "guard.oom_score", "guard.stopped", "guard.restart", "guard.set_aside", "watchdog.budget", "budget.overdraft",
)  # fmt: skip
"""Events that are no decision, or one of very many; all of them are in the record."""


@dataclass
class Scene:
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
    status: str = ""
    error: str = ""
    _last: tuple[float, int] | None = None

    def take(self, record: Record) -> str | None:
        """Take in an event; returns a line worth printing where lines are printed, else None."""
        kind = record["kind"]
        teller = getattr(self, "_" + kind.replace(".", "_"), None)
        if teller is not None:
            found: str | None = teller(record)
            return found
        if kind in _QUIET or kind.startswith("forecast."):
            return None
        return self._decide(record)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of training at the present speed; None while that cannot be told."""
        if self.steps is None or not self.steps_per_s or self.stage != "training":
            return None
        left = self.steps * (self.epochs - self.epoch) - self.step
        return max(0.0, left / self.steps_per_s)

    def _decide(self, record: Record) -> str:
        text, _ = describe(record)
        self.decisions.append(text)
        return text

    def _run_start(self, record: Record) -> str | None:
        self.stage, self.status, self.error = "starting", "", ""
        self.attempt, self.pid = int(record.get("attempt", 1)), record.get("pid")
        self.limit = int(record.get("limit_nbytes") or 0)
        self._last = None
        return f"attempt {self.attempt}, limit {size(self.limit)}"

    def _train_preparing(self, record: Record) -> str | None:
        first = self.stage != "preparing"
        self.stage, self.rows = "preparing", int(record["rows"])
        return "preparing: one pass over the data" if first else f"preparing: {self.rows:,} rows read"

    def _train_prepared(self, record: Record) -> str | None:
        self.text = str(record["text"])
        left_out = "".join(f"; {name} is left out: {why}" for name, why in dict(record.get("ignored") or {}).items())
        missing = int(record.get("without_target") or 0)
        left_out += f"; {missing:,} rows without a target are left out" if missing else ""
        return f"prepared in {record['seconds']:.1f} s: {record['train']:,} rows to train on, {self.text}{left_out}"

    def _train_data(self, record: Record) -> str | None:
        self.stage = "loading the framework"
        self.text, self.steps = str(record["text"]), record.get("steps")
        self.rows = int(record.get("train_rows") or 0)
        loading = f"loading {record.get('backend') or 'the framework'}"
        return f"{loading} to try a few small steps: will a batch fit?" if record.get("foretold") else loading

    def _run_forecast(self, record: Record) -> str | None:
        text = _foretold(record)
        self.decisions.append(text)
        return text

    def _guard_resume(self, record: Record) -> str | None:
        return self._decide(record)

    def _train_begin(self, record: Record) -> str | None:
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
        self._last = (now, done)
        total = f"/{self.steps}" if self.steps else ""
        return (
            f"epoch {self.epoch + 1}/{self.epochs} step {self.step}{total}  {self.samples_per_s:,.0f} samples/s  "
            f"{numbers(self.logs)}  memory {size(self.used)}/{size(self.limit)}  waited {self.waited:.0%}"
        )

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


def _foretold(record: Record) -> str:
    """The forecast in a sentence."""
    if record.get("fits") is None:
        return str(record.get("text", ""))[:300]
    peak = f"peak {size(int(record['peak_nbytes']))} of {size(int(record['limit_nbytes']))}"
    if record["fits"]:
        return f"forecast: a batch of {record['batch']} fits ({peak})"
    if not record.get("micro"):
        return f"forecast: not even one row fits ({peak}); it is tried all the same"
    return f"forecast: a batch of {record['batch']} does not fit ({peak}); micro-batches of {record['micro']} do"


def numbers(logs: dict[str, Any]) -> str:
    """Metrics in a line."""
    return " ".join(f"{name} {value:.4g}" for name, value in logs.items() if isinstance(value, (int, float)))


def _smooth(before: float, now: float) -> float:
    return now if not before else before + SMOOTH * (now - before)

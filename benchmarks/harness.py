"""Races: every contestant in fresh processes, in turns, watched from outside.

Covers: rounds, starting and ending children, their memory above what their imports took, medians.
Does not cover: what a child does (child.py), tables and plots (report.py).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypedDict

from penstock.memory import Meter

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_S = 0.05
TRIES = 2
"""Failures after which a contestant is not started again."""


@dataclass(frozen=True)
class Options:
    """How long and how often to measure."""

    quick: bool = False
    full: bool = False
    rounds: int | None = None

    def turns(self, usual: int) -> int:
        """How many rounds."""
        return self.rounds or (1 if self.quick else usual)


class Window(TypedDict):
    """Seconds before counting, and of counting."""

    warm_s: float
    window_s: float


@dataclass(frozen=True)
class Race:
    """Contestants of one group in a module, on one dataset, that must all deliver the same shape."""

    module: str
    group: str
    path: str
    names: Sequence[str]
    shape: tuple[int, ...]
    dtype: str
    rounds: int
    measure: str = "rate"
    warm_s: float = 1.0
    window_s: float = 3.0
    timeout_s: float = 60.0
    more: dict[str, float] = field(default_factory=dict)

    def task(self) -> str:
        """What a child is told."""
        return json.dumps({
            "group": self.group, "path": self.path, "measure": self.measure, "shape": self.shape, "dtype": self.dtype,
            "warm_s": self.warm_s, "window_s": self.window_s, **self.more,
        })  # fmt: skip


@dataclass
class Score:
    """What the rounds of one contestant gave."""

    name: str
    rounds: list[dict[str, float] | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def values(self, key: str) -> list[float]:
        """One number of every round that worked."""
        return [found[key] for found in self.rounds if found is not None]

    def median(self, key: str) -> float | None:
        """The median, or None if no round worked."""
        values = self.values(key)
        return statistics.median(values) if values else None


def race(plan: Race, say: Callable[[str], None] = print) -> list[Score]:
    """Run all rounds; the first of a round is another one each time, so that nobody always follows the same."""
    scores = [Score(name) for name in plan.names]
    warm(Path(plan.path))
    for turn in range(plan.rounds):
        first = turn % len(scores)
        for score in scores[first:] + scores[:first]:
            if len(score.errors) >= TRIES:
                score.rounds.append(None)
                continue
            found = run_child(plan, score.name)
            if isinstance(found, str):
                score.errors.append(found)
                score.rounds.append(None)
                say(f"  round {turn + 1} {score.name}: failed: {found.strip().splitlines()[-1][:200]}")
            else:
                score.rounds.append(found)
                say(f"  round {turn + 1} {score.name}: " + ", ".join(f"{k} {v:,.4g}" for k, v in found.items()))
    return scores


def warm(folder: Path) -> None:
    """Read all data once, so that the page cache is the same for everybody."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(16 << 20):
                    pass


def run_child(plan: Race, name: str) -> dict[str, float] | str:
    """One contestant once: its numbers, or what went wrong."""
    argv = [sys.executable, "-m", "benchmarks.child", plan.module, name, plan.task()]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", **os.environ}
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        alarm = threading.Timer(plan.timeout_s, _end, [child])
        alarm.start()
        began = time.monotonic()
        try:
            return _converse(child)
        except (EOFError, OSError, ValueError) as error:
            if time.monotonic() - began >= plan.timeout_s:
                return f"ended after {plan.timeout_s:.0f} s without a result"
            _end(child)  # if it closed its output and still runs
            code = child.wait()
            errors.seek(0)
            return f"{error or 'ended early'}; exit code {code}\n{errors.read()[-1500:]}"
        finally:
            alarm.cancel()
            _end(child)
            child.wait()
            for pipe in (child.stdin, child.stdout):
                _close(pipe)


def _converse(child: subprocess.Popen[str]) -> dict[str, float] | str:
    """Wait for the imports, take the baseline, let it run, and add the growth to its numbers."""
    word, told = _hear(child)
    if word == "FAILED":
        return str(told)
    meter = Meter(child.pid)
    baseline = meter.read(exact=True).nbytes
    watch = _Watch(meter)
    watch.start()
    _tell(child)
    word, told = _hear(child)
    watch.stop()
    peak = max(watch.peak, meter.read(exact=True).nbytes) if word == "RESULT" else 0
    _tell(child)
    if word == "FAILED":
        return str(told)
    return {**told, "growth_mb": (peak - baseline) / 1e6, "baseline_mb": baseline / 1e6}


class _Watch(threading.Thread):
    """Looks at a process tree's memory 20 times a second."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(daemon=True)
        self._meter, self._done, self.peak = meter, threading.Event(), 0

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.peak = max(self.peak, self._meter.read().nbytes)

    def stop(self) -> None:
        self._done.set()
        self.join()


def _hear(child: subprocess.Popen[str]) -> tuple[str, Any]:
    """The child's next message; whatever else it prints is passed over."""
    assert child.stdout is not None
    for line in child.stdout:
        word, _, rest = line.strip().partition(" ")
        if word in ("READY", "RESULT", "FAILED"):
            return word, json.loads(rest) if rest else None
    raise EOFError("no result")


def _tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def _end(child: subprocess.Popen[str]) -> None:
    """End the child's whole session, its workers too."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except BrokenPipeError:
            return

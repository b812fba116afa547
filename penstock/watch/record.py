"""Writes a run down while it happens: events and memory samples, one JSON line each.

Covers: listening to the hub, memory samples, keeping both cheap, `ps.record`.
Does not cover: the file itself (event_log.py), reading it (run_folder.py).

Events are written in the thread that emits them: what was decided in the last moment before a kill is on disk. A kind
of event that comes in floods is thinned out, and the next memory sample waits for at least 125 times the processor time
of the last, so that samples stay below one percent of the run's time however dear they are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.core.events import Event, events
from penstock.memory.account import MemoryReport, sample
from penstock.watch.environment import describe_environment
from penstock.watch.event_log import EventLog
from penstock.watch.run_folder import read_events

SAMPLE_EVERY_S = 1.0
SAMPLE_SHARE = 0.008
"""Share of the time that memory samples may take; large process trees are sampled less often to keep it."""
RATE_PER_S = 10.0
BURST = 200.0
"""A kind of event that comes more often than this is thinned out: a flood must not cost the run its time."""
ALWAYS = {
    *("run.start", "run.plan", "run.forecast", "run.death", "run.restart", "run.end"),
    *("train.begin", "train.epoch", "train.end", "memory.sample"),
}
MOST_KINDS = 500
MOST_HOLDERS = 12


class Recorder:
    """Appends the hub's events, and a memory sample a second, to `folder`/events.jsonl while its block runs.

    `memory_every_s=None` takes no samples: for a supervisor, whose child records its own.
    """

    def __init__(self, folder: str | os.PathLike[str], *, memory_every_s: float | None = SAMPLE_EVERY_S) -> None:
        self.folder = Path(folder)
        self.memory_every_s = memory_every_s
        self.log = EventLog(folder)
        self._rates: dict[str, _Rate] = {}
        self._remove: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.log.__enter__()
        self._remove = events.listen(self._hear)
        if self.memory_every_s is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._sample, name="penstock-record", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._tell_thinned()
        self.log.__exit__(kind, error, trace)

    def _hear(self, event: Event) -> None:
        """Write an event of the hub down, unless its kind floods."""
        if event.kind not in ALWAYS:
            rate = self._rates.get(event.kind)
            if rate is None:
                name = event.kind if len(self._rates) < MOST_KINDS else "(other kinds)"
                rate = self._rates.setdefault(name, _Rate())
            if not rate.take(event.time_s):
                return
        self.log.write(event.kind, event.who, event.values, event.time_s)

    def _sample(self) -> None:
        """Take memory samples until told to stop, and one at the end."""
        assert self.memory_every_s is not None
        stopping = False
        while not stopping:
            start_s = time.thread_time()
            self._sample_once()
            self._tell_thinned()
            stopping = self._stop.wait(wait_after(time.thread_time() - start_s, self.memory_every_s))
        self._sample_once()

    def _sample_once(self) -> None:
        try:
            self.log.write("memory.sample", "recorder", holders_now(sample()))
        except Exception as error:  # a holder's own function may fail, and /proc changes while it is read
            self.log.write("record.no_sample", "recorder", {"error": repr(error)})

    def _tell_thinned(self) -> None:
        """Say how many events of which kind were left out since the last time."""
        left_out = {kind: rate.left_out for kind, rate in tuple(self._rates.items()) if rate.left_out}
        for kind in left_out:
            self._rates[kind].left_out = 0
        if left_out:
            self.log.write("record.thinned", "recorder", {"kinds": left_out})


def wait_after(cost_s: float, every_s: float) -> float:
    """Seconds from the end of a sample that took `cost_s` of processor time to the next one."""
    return max(every_s, cost_s / SAMPLE_SHARE)


class _Rate:
    """Credits that come back with time; one event costs one."""

    __slots__ = ("credit", "last_s", "left_out")

    def __init__(self) -> None:
        self.credit, self.last_s, self.left_out = BURST, 0.0, 0

    def take(self, now_s: float) -> bool:
        """Whether an event may be written now."""
        self.credit = min(BURST, self.credit + max(0.0, now_s - self.last_s) * RATE_PER_S)
        self.last_s = now_s
        if self.credit < 1:
            self.left_out += 1
            return False
        self.credit -= 1
        return True


@contextmanager
def record(folder: str | os.PathLike[str], *, config: Mapping[str, Any] | None = None) -> Iterator[Recorder]:
    """Record everything that happens inside the block as one run, to be shown by `penstock report` and `watch`.

    `config` is any settings worth keeping. Recording into the same folder again continues the run.

    >>> import tempfile, penstock as ps
    >>> folder = tempfile.mkdtemp()
    >>> with ps.record(folder, config={"rows": 8}):
    ...     batches = list(ps.from_tensor_slices(list(range(8))).batch(4))
    >>> [event["kind"] for event in read_events(folder)][0]
    'run.start'
    """
    attempt = 1 + sum(1 for event in read_events(folder) if event["kind"] == "run.start")
    with EventLog(folder) as log:
        # Written, not emitted: of two records one inside the other, each begins and ends its own run only.
        log.write("run.start", "record", start_values(folder, attempt=attempt, config=config or {}))
        status, why = "finished", ""
        try:
            with Recorder(folder) as recorder:
                yield recorder
        except KeyboardInterrupt:
            status, why = "interrupted", "KeyboardInterrupt"
            raise
        except BaseException as error:
            status, why = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            log.write("run.end", "record", {"status": status, "error": why})


def start_values(folder: str | os.PathLike[str], *, attempt: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a `run.start` event for this process."""
    surroundings = describe_environment()
    return {
        "run": Path(folder).resolve().name,
        "attempt": attempt,
        "pid": os.getpid(),
        "limit_nbytes": surroundings["limit_nbytes"],
        "config": dict(config),
        "environment": surroundings,
    }


def holders_now(report: MemoryReport) -> dict[str, Any]:
    """The values of a `memory.sample`: who holds how much, the smallest holders taken together."""
    held: dict[str, int] = dict(report.named)
    for budget in report.budgets:
        for who, nbytes in budget.holders.items():
            held[who] = held.get(who, 0) + nbytes
    largest = sorted(((name, n) for name, n in held.items() if n > 0), key=lambda item: -item[1])
    holders = dict(largest[:MOST_HOLDERS])
    if len(largest) > MOST_HOLDERS:
        holders["smaller holders"] = sum(n for _, n in largest[MOST_HOLDERS:])
    holders |= {name: nbytes for name, nbytes in report.kinds.items() if nbytes > 0}
    others = sum(process.nbytes for process in report.measured.by_process[1:])
    if others:
        holders["worker processes"] = others
    holders["not accounted for"] = report.unexplained
    return {"used_nbytes": report.measured.nbytes, "limit_nbytes": report.limit.nbytes, "holders": holders}

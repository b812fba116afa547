"""Decisions about where and how widely work runs, from measured facts.

Covers: threads or processes for users' functions (`choose`), how many threads wait for storage (`decide`, `Tuner`).
Does not cover: measuring the interpreter lock (gil_probe.py), running (threads.py, processes.py).

Both decisions are pure functions. The number of threads climbs a hill: half as many more while the consumer waits and
the jobs wait too (for storage, not for a processor), kept if throughput rose, taken back if not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from penstock.core.events import Events
from penstock.core.sizes import size
from penstock.engine.workers.gil_probe import run_delay_s
from penstock.engine.workers.threads import Pool
from penstock.plan.steps import Workers

HELD_LEAST = 0.55
"""Share of the time with the interpreter lock from which threads no longer pay: two of them gain less than 1.8x."""

_COPY_BYTES_PER_S = 1e9
"""Bytes moved to or from a process each second, packing and page faults included, on a busy machine."""
_WAKE_S = 0.001
"""What one block costs besides its bytes: two wake-ups and the packing of headers."""
_WORK_OVER_COST = 4.0
"""A block must work so many times longer than its way takes."""


@dataclass(frozen=True)
class FunctionFacts:
    """What is known about a chain of users' functions after some blocks."""

    asked: Workers
    cores: int
    held: float
    """Share of their time with the interpreter lock."""
    block_s: float
    """Processor seconds per block."""
    block_nbytes: int
    """Bytes of a block on its way in and out."""
    workers: int
    """Worker processes for which the budget has room now."""
    obstacle: str = ""
    """Why it cannot run in another process, if so."""


def objections(facts: FunctionFacts) -> list[str]:
    """What speaks against worker processes, in words; none means they pay."""
    way_s = _WAKE_S + facts.block_nbytes / _COPY_BYTES_PER_S
    found = []
    if facts.cores < 2:
        found.append("there is one processor")
    if facts.held < HELD_LEAST:
        found.append(f"the function holds the interpreter lock {facts.held:.0%} of its time")
    if facts.block_s < _WORK_OVER_COST * way_s:
        found.append(
            f"a block takes {facts.block_s * 1e3:.2g} ms and its way to a process about {way_s * 1e3:.2g} ms "
            f"({size(facts.block_nbytes)})"
        )
    if facts.workers < 2:
        found.append("the memory budget has no room for worker processes")
    if facts.obstacle:
        found.append(facts.obstacle)
    return found


def choose(facts: FunctionFacts) -> Literal["thread", "process"]:
    """Where users' functions run; what the user asked for goes before what was measured."""
    if facts.asked != "auto":
        return facts.asked
    return "thread" if objections(facts) else "process"


MOST_THREADS = 64
_WIDEN = 1.5
_WORTH = 1.05
"""Throughput must rise by more than this for additional threads to stay."""
_WAITED_LEAST = 0.05
_JOBS_WAIT_LEAST = 0.3
_JOBS_ONLY_WAIT = 0.8
"""Jobs that wait this much need hardly any processor, so it does not matter whether one is idle."""
_IDLE_LEAST = 0.1
_CORES_USED_MOST = 0.8
_IN_A_ROW = 3
"""Windows of waiting before more threads are tried. A slow window is followed by a better one whatever is done: threads
that were added in between would seem to have helped, stay, and hold memory. A run's first window is mostly slow."""
_REST_LEAST, _REST_MOST = 8, 128
"""Windows to wait after a step that did not pay; doubled each time in a row."""


@dataclass(frozen=True)
class FlowFacts:
    """What was measured in one window of time."""

    window_s: float
    jobs: int
    waited_s: float
    """How long the consumer waited."""
    job_wall_s: float
    """Time inside jobs, all threads together."""
    job_cpu_s: float
    job_queued_s: float
    """Time that jobs were able to run and had no processor."""
    idle: float
    """Unused share of the machine's processor time."""
    threads: int
    cores: int

    @property
    def rate(self) -> float:
        return self.jobs / self.window_s

    @property
    def jobs_wait(self) -> float:
        """Share of the jobs' time in which they neither computed nor queued for a processor."""
        if self.job_wall_s <= 0:
            return 0.0
        return max(0.0, 1.0 - (self.job_cpu_s + self.job_queued_s) / self.job_wall_s)


@dataclass(frozen=True)
class Climb:
    """Where the search stands: on trial since the last step, or resting."""

    before: int = 0
    """Threads before the step on trial; 0 if there is none."""
    rate_before: float = 0.0
    settle: bool = False
    """Whether the next window still has jobs of the old width in it."""
    rest: int = 0
    failures: int = 0
    waiting: int = 0
    """Windows in a row in which everyone waited."""
    best_rate: float = 0.0
    """The most throughput of these."""


@dataclass(frozen=True)
class ThreadDecision:
    """How many threads from now on, and why; `why` is empty if nothing was decided."""

    threads: int
    climb: Climb
    why: str = ""


def decide(facts: FlowFacts, climb: Climb) -> ThreadDecision:
    """The next step of the climb."""
    if climb.settle:
        return ThreadDecision(facts.threads, replace(climb, settle=False))
    if climb.before:
        return _judge(facts, climb)
    if climb.rest:
        return ThreadDecision(facts.threads, replace(climb, rest=climb.rest - 1))
    if not _all_wait(facts):
        return ThreadDecision(facts.threads, replace(climb, waiting=0, best_rate=0.0))
    climb = replace(climb, waiting=climb.waiting + 1, best_rate=max(climb.best_rate, facts.rate))
    return _widen(facts, climb) if climb.waiting >= _IN_A_ROW else ThreadDecision(facts.threads, climb)


def _judge(facts: FlowFacts, climb: Climb) -> ThreadDecision:
    """Keep what the last step gained, or take it back."""
    gain = facts.rate / climb.rate_before if climb.rate_before else 1.0
    if gain > _WORTH:
        gained = f"{gain:.2f}x the throughput with {facts.threads} threads"
        return (
            _widen(facts, Climb(), f"{gained}; ")
            if _all_wait(facts)
            else ThreadDecision(facts.threads, Climb(), gained)
        )
    failures = climb.failures + 1
    rest = min(_REST_MOST, _REST_LEAST << (failures - 1))
    return ThreadDecision(climb.before, Climb(rest=rest, failures=failures), f"only {gain:.2f}x the throughput: back")


def _widen(facts: FlowFacts, climb: Climb, gained: str = "") -> ThreadDecision:
    """Half as many threads more."""
    threads = min(MOST_THREADS, max(facts.threads + 1, round(facts.threads * _WIDEN)))
    why = f"the consumer waits and jobs wait {facts.jobs_wait:.0%} of their time"
    on_trial = Climb(facts.threads, max(climb.best_rate, facts.rate), settle=True, failures=climb.failures)
    return ThreadDecision(threads, on_trial, gained + why)


def _all_wait(facts: FlowFacts) -> bool:
    """Whether the consumer waits for jobs, and these for storage, and there is something to gain."""
    cores_used = facts.job_cpu_s / facts.window_s / facts.cores
    storage_waits = facts.jobs_wait > _JOBS_WAIT_LEAST and (
        facts.idle > _IDLE_LEAST or facts.jobs_wait > _JOBS_ONLY_WAIT
    )
    hungry = facts.waited_s > _WAITED_LEAST * facts.window_s
    return hungry and storage_waits and cores_used < _CORES_USED_MOST and facts.threads < MOST_THREADS


_WINDOW_S = 0.25
_JOBS_PER_THREAD = 2
"""Jobs of each thread in a window before its throughput means something."""


@dataclass(frozen=True)
class _Reading:
    time_s: float
    jobs: int
    wall_s: float
    cpu_s: float
    queued_s: float
    waited_s: float
    machine: tuple[float, float]


class Tuner:
    """Looks at the clocks now and then, from the thread that drives a run, and changes the number of threads."""

    def __init__(self, pool: Pool, events: Events, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pool, self._events, self._clock = pool, events, clock
        self._climb = Climb()
        self._last: _Reading | None = None
        self._paused = False

    def pause(self) -> None:
        """Leave the threads alone: memory is short, and the watchdog has made them fewer."""
        self._paused = True

    def go_on(self) -> None:
        """Start over from the present number of threads."""
        self._paused, self._last, self._climb = False, None, Climb()

    def tick(self, waited_s: float) -> None:
        """Called at each hand-over with the consumer's waiting time so far; decides a few times a second."""
        now, last = self._clock(), self._last
        if self._paused or (last is not None and now - last.time_s < _WINDOW_S):
            return
        jobs = self._pool.clock.jobs
        if last is not None and jobs - last.jobs < _JOBS_PER_THREAD * self._pool.size:
            return
        reading = self._read(now, waited_s)
        self._last = reading
        if last is None:
            return
        facts = _between(last, reading, self._pool)
        decision = decide(facts, self._climb)
        self._climb = decision.climb
        if decision.why:
            self._tell(facts, decision)
        if decision.threads != facts.threads:
            self._pool.resize(decision.threads)

    def _read(self, now: float, waited_s: float) -> _Reading:
        clock = self._pool.clock
        queued = sum(run_delay_s(task) for task in self._pool.tasks())
        return _Reading(now, clock.jobs, clock.wall_s, clock.cpu_s, queued, waited_s, machine_time())

    def _tell(self, facts: FlowFacts, decision: ThreadDecision) -> None:
        self._events.emit(
            "tune.threads",
            "workers",
            threads=decision.threads,
            before=facts.threads,
            why=decision.why,
            jobs_per_s=round(facts.rate, 1),
            consumer_waits=round(facts.waited_s / facts.window_s, 3),
            jobs_wait=round(facts.jobs_wait, 3),
            idle=round(facts.idle, 3),
        )


def _between(last: _Reading, now: _Reading, pool: Pool) -> FlowFacts:
    busy, idle = (b - a for a, b in zip(last.machine, now.machine, strict=True))
    return FlowFacts(
        window_s=now.time_s - last.time_s,
        jobs=now.jobs - last.jobs,
        waited_s=now.waited_s - last.waited_s,
        job_wall_s=now.wall_s - last.wall_s,
        job_cpu_s=now.cpu_s - last.cpu_s,
        job_queued_s=max(0.0, now.queued_s - last.queued_s),
        idle=idle / (busy + idle) if busy + idle > 0 else 0.0,
        threads=pool.size,
        cores=pool.cores,
    )


def machine_time() -> tuple[float, float]:
    """Clock ticks that the machine's processors were busy and idle since it started; zeros where that is unknown."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [float(value) for value in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return (0.0, 0.0)
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle, idle)

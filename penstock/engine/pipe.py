"""The pipe's width: one data budget for the whole process, and its watchdog.

Covers: the shared budget, the watchdog's ladder for running streams, the context of a new run.
Does not cover: measuring and deciding (memory/), the streams (build.py).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.engine.buffers.array_memory import ArrayMemory
from penstock.engine.buffers.batch import SlabPool
from penstock.engine.buffers.blocks import BlockBuffers
from penstock.engine.cache.source import drop_cached, keep_again
from penstock.engine.run import Run
from penstock.engine.streams.stream import Context
from penstock.engine.workers.placement import Places
from penstock.engine.workers.threads import Pool
from penstock.engine.workers.tune import Tuner
from penstock.memory.arenas import share_arenas
from penstock.memory.between_rows import set_watchdog
from penstock.memory.budget import Budget
from penstock.memory.limits import current_limit, current_reserve
from penstock.memory.meter import Meter
from penstock.memory.watchdog import Rung, Watchdog, plan_budget, trim_allocator


def cores() -> int:
    """Processors this process may use, as many as it has threads that compute."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pipe:
    """Shared by all runs of a process: made with the first, idle after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: weakref.WeakSet[_Running] = weakref.WeakSet()
        self._count = 0
        self._watchdog: Watchdog | None = None
        self.budget: Budget | None = None
        self.pid = os.getpid()

    def open(self) -> tuple[Context, _Running]:
        """A context for a new run, under the limit that holds now."""
        meter = Meter()
        total = plan_budget(current_limit().nbytes, meter.read().nbytes - self._leased(), current_reserve())
        with self._lock:
            if self.budget is None:
                self.budget = Budget(total, name="data")
            elif self._count == 0 or total < self.budget.total:
                self.budget.resize(total)
            self._count += 1
            spent = self._watchdog if self._watchdog is not None and self._watchdog.gave_up else None
            if self._watchdog is None or spent is not None:
                self._watchdog = self._new_watchdog(self.budget, meter)
        if spent is not None:
            spent.stop()
        share_arenas()  # before the pool's threads start
        pool = Pool(cores())
        context = Context(
            budget=self.budget,
            pool=pool,
            slabs=SlabPool(self.budget),
            buffers=BlockBuffers(self.budget),
            arrays=ArrayMemory(self.budget),
            most_nbytes=self.budget.total,
            look=self._look,
            events=events,
            places=Places(self.budget, events, pool.clock, pool.cores),
            tuner=Tuner(pool, events),
        )
        running = _Running(context)
        self._runs.add(running)
        return context, running

    def close(self, running: _Running) -> None:
        """End a run; the watchdog ends with the last one."""
        with self._lock:
            self._runs.discard(running)
            self._count -= 1
            watchdog = self._watchdog if self._count == 0 else None
            if watchdog is not None:
                self._watchdog = None
                set_watchdog(None)
        if watchdog is not None:
            watchdog.stop()

    def _new_watchdog(self, budget: Budget, meter: Meter) -> Watchdog:
        watchdog = Watchdog(
            budget,
            lambda: current_limit().nbytes,
            meter,
            self._ladder(),
            give_up=self._give_up,
            last_words=_write,  # the error may wait where nobody asks for a batch, or behind a row that takes long
            warn=_write,
        )
        watchdog.start()
        set_watchdog(watchdog)
        return watchdog

    def _look(self) -> None:
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.look()

    def _leased(self) -> int:
        return 0 if self.budget is None else self.budget.used

    def _ladder(self) -> list[Rung]:
        """What running streams can give up, the cheapest first."""
        return [
            Rung("read_ahead", lambda: self._each("narrow"), lambda: self._each("widen"), frees_data=True),
            Rung("idle_buffers", lambda: self._each("drop_idle"), frees_data=True),
            # Batches in reference cycles (an exception and its frames) keep their leases until they are collected.
            Rung("garbage", lambda: (gc.collect(), None)[1], frees_data=True),
            Rung("cache", drop_cached, keep_again, frees_data=True),
            Rung("workers", lambda: self._each("fewer"), lambda: self._each("more"), frees_data=True),
            Rung("allocator", lambda: (trim_allocator(), None)[1]),
        ]

    def _give_up(self, words: str) -> None:
        """Stop every run with a verdict; it is raised where the next batch is asked for."""
        for running in tuple(self._runs):
            running.fail(OutOfMemory(words, phase="data", micro=0))

    def _each(self, action: str) -> None:
        for running in tuple(self._runs):
            getattr(running, action)()


def _write(words: str) -> None:
    """To the standard error, at once."""
    sys.stderr.write(f"penstock: {words}\n")
    sys.stderr.flush()


class _Running:
    """What the ladder may do to one run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._threads = context.pool.size
        self.run: weakref.ref[Run] | None = None

    def fail(self, error: BaseException) -> None:
        run = None if self.run is None else self.run()
        if run is not None:
            run.fail(error)

    def narrow(self) -> None:
        self._context.read_ahead.factor = 0.34

    def widen(self) -> None:
        self._context.read_ahead.factor = 1.0

    def drop_idle(self) -> None:
        self._context.slabs.drop_idle()
        if self._context.buffers is not None:
            self._context.buffers.drop_idle()
        if self._context.arrays is not None:
            self._context.arrays.drop_idle()
        if self._context.places is not None:
            self._context.places.processes.drop_idle()

    def fewer(self) -> None:
        if self._context.tuner is not None:
            self._context.tuner.pause()
        self._context.pool.resize(1)

    def more(self) -> None:
        self._context.pool.resize(self._threads)
        if self._context.tuner is not None:
            self._context.tuner.go_on()


_pipe = Pipe()


def pipe() -> Pipe:
    """This process's pipe; a forked child gets its own, since locks and threads stay with the parent."""
    global _pipe
    if _pipe.pid != os.getpid():
        _pipe = Pipe()
    return _pipe


def memory_of_runs() -> Buffers:
    """Buffers on the budget of this process's runs, for a step that decodes inside a map."""
    budget = pipe().budget
    return NEW_MEMORY if budget is None else BlockBuffers(budget)

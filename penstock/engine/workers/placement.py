"""Where users' functions run: in this process's threads, or in worker processes.

Covers: measuring a function on the first blocks, the decision and its event, running blocks at the chosen place.
Does not cover: the decision itself (tune.py), the processes (processes.py).

No sample is computed twice: the blocks that are measured are the run's own. Results are the same at both places, so
a run may begin in threads and go on in processes once they are up.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any

from penstock.core.block import Block
from penstock.core.errors import InvalidInput
from penstock.core.events import Events, fell_back
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.gil_probe import GilProbe
from penstock.engine.workers.processes import BASE_NBYTES, PackedFunctions, Processes, UnloadableError
from penstock.engine.workers.threads import WorkClock
from penstock.engine.workers.tune import FunctionFacts, choose, objections
from penstock.memory.budget import Budget
from penstock.order.permutation import Key
from penstock.plan.prepare import Prepare
from penstock.plan.steps import Workers

_MEASURED_S = 0.3
"""Function time after which a decision is made."""
_MEASURED_BLOCKS = 32
"""Blocks after which it is made in any case: such a function is too quick to move."""
_PROBED_LEAST = 15
"""Naps of the probe, of which a Python loop allows one in 5 ms."""


class _Record:
    """What is known about one chain of functions in this run."""

    def __init__(self, fused: Fused, asked: Workers) -> None:
        self.fused, self.asked = fused, asked
        self.choice: Workers = "auto"
        self.program: PackedFunctions | None = None
        self.probe = GilProbe()
        self.measuring = threading.Lock()
        self.blocks, self.nbytes = 0, 0
        self.cpu_s, self.wall_s = 0.0, 0.0

    @property
    def enough(self) -> bool:
        return self.blocks >= _MEASURED_BLOCKS or (self.wall_s >= _MEASURED_S and self.probe.naps >= _PROBED_LEAST)


class Places:
    """Runs users' functions for all streams of a run."""

    def __init__(self, budget: Budget, events: Events, clock: WorkClock, cores: int) -> None:
        self.processes = Processes(budget, cores)
        self._budget, self._events, self._clock, self._cores = budget, events, clock, cores
        self._records: dict[tuple[int, ...], _Record] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def run(
        self, fused: Fused, block: Block, key: Key, buffers: Buffers = NEW_MEMORY, *, whole: bool = False
    ) -> Block | None:
        """The functions on a block (or on a batch as one element: None if a filter drops it)."""
        record = self._record(fused)
        if record.choice == "auto":
            return self._measured(record, block, key, buffers, whole)
        if record.choice == "process":
            if record.asked == "process" or self.processes.ready:
                return self._elsewhere(record, block, key, buffers, whole)
            if self.processes.failure:
                self._give_up(record, f"worker processes did not start: {self.processes.failure}")
        return _here(fused, block, key, buffers, whole)

    def close(self) -> None:
        """End the worker processes."""
        self.processes.close()

    def _record(self, fused: Fused) -> _Record:
        steps = tuple(id(step) for step in fused.steps)  # alive as long as the record is
        with self._lock:
            record = self._records.get(steps)
            if record is None:
                record = _Record(fused, asked_of(fused))
                if record.asked == "thread" or (self._cores < 2 and record.asked == "auto"):
                    record.choice = "thread"
                elif record.asked == "process":
                    self._decide(record)
                self._records[steps] = record
        return record

    def _measured(self, record: _Record, block: Block, key: Key, buffers: Buffers, whole: bool) -> Block | None:
        """Run here and watch, one block at a time; others run unwatched meanwhile."""
        if not record.measuring.acquire(blocking=False):
            return _here(record.fused, block, key, buffers, whole)
        try:
            wall, cpu = time.perf_counter(), time.thread_time()
            with record.probe:
                result = _here(record.fused, block, key, buffers, whole)
            record.wall_s += time.perf_counter() - wall
            record.cpu_s += time.thread_time() - cpu
            record.blocks += 1
            record.nbytes += block.nbytes + (0 if result is None else result.nbytes)
            if record.choice == "auto" and record.enough:
                self._decide(record)
        finally:
            record.measuring.release()
        return result

    def _decide(self, record: _Record) -> None:
        obstacle = ""
        likely = FunctionFacts(
            asked=record.asked,
            cores=self._cores,
            held=record.probe.held,
            block_s=record.cpu_s / max(1, record.blocks),
            block_nbytes=record.nbytes // max(1, record.blocks),
            workers=self._cores,
        )
        if choose(likely) == "process":  # only then are the functions packed, which may take long
            obstacle = self._pack(record)
        needed = BASE_NBYTES + 2 * (0 if record.program is None else record.program.nbytes)
        facts = replace(likely, workers=min(self._cores, self._budget.free // needed), obstacle=obstacle)
        choice = choose(facts)
        if choice == "process" and not self.processes.start(must=record.asked == "process"):
            facts = replace(facts, workers=0)  # the memory was taken meanwhile
            choice = choose(facts)
        if choose(likely) == "process" and choice == "thread":
            fell_back("function", f"{record.fused} stays in threads: {'; '.join(objections(facts))}")
        self._tell(record, facts, choice)
        record.choice = choice

    def _pack(self, record: _Record) -> str:
        """Pack the functions for their way; returns why that is not possible."""
        try:
            record.program = PackedFunctions(next(self._numbers), record.fused)
        except Exception as error:
            if record.asked == "process":
                raise InvalidInput(
                    f"{record.fused} cannot be sent to a worker process: {type(error).__name__}: {error}. "
                    "Open files, locks and connections inside the function, or use workers='thread'."
                ) from error
            return f"it cannot be sent to a process: {type(error).__name__}: {error}"
        return ""

    def _elsewhere(self, record: _Record, block: Block, key: Key, buffers: Buffers, whole: bool) -> Block | None:
        assert record.program is not None
        if record.asked == "process":
            self.processes.wait_ready()
        try:
            result, cpu_s = self.processes.run(record.program, block, key, whole=whole)
        except UnloadableError as error:
            if record.asked == "process":
                raise InvalidInput(f"{record.fused} cannot be rebuilt in a worker process: {error}") from error
            self._give_up(record, f"it cannot be rebuilt in a process: {error}")
            return _here(record.fused, block, key, buffers, whole)
        self._clock.add_cpu(cpu_s)
        return result

    def _give_up(self, record: _Record, why: str) -> None:
        """Stay in threads after all; no row has been lost."""
        record.choice = "thread"
        fell_back("function", f"{record.fused} stays in threads: {why}")
        self._events.emit("tune.workers", str(record.fused), workers="thread", why=why)

    def _tell(self, record: _Record, facts: FunctionFacts, choice: str) -> None:
        why = "asked for" if facts.asked != "auto" else "; ".join(objections(facts)) or "it keeps threads from running"
        values: dict[str, Any] = {"workers": choice, "why": why, "cores": facts.cores}
        if facts.asked == "auto":
            values |= {
                "gil_held": round(facts.held, 3),
                "block_ms": round(facts.block_s * 1e3, 3),
                "block_nbytes": facts.block_nbytes,
                "measured_blocks": record.blocks,
            }
        self._events.emit("tune.workers", str(record.fused), **values)


def asked_of(fused: Fused) -> Workers:
    """What the user asked for: one step in a process takes the whole chain there."""
    asked = {getattr(step, "workers", "auto") for step in fused.steps}
    if all(isinstance(step, Prepare) for step in fused.steps):
        return "thread"  # the engine's own steps do not hold the interpreter
    return "process" if "process" in asked else ("thread" if "thread" in asked else "auto")


def _here(fused: Fused, block: Block, key: Key, buffers: Buffers, whole: bool) -> Block | None:
    return fused.on_batch(block, key, buffers) if whole else fused(block, key, buffers)

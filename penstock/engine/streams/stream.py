"""The one shape of everything that runs: a stream pulled piece by piece, whose state is small at every piece.

Covers: pieces, streams, what they share (`Context`), and reading ahead in order (`Lookahead`).
Does not cover: any particular step.

A stream is built from a plan node and a state. `pull` returns pieces; each piece carries the state with which a new
stream would continue right after it. That is all resume needs: no piece is ever replayed to find a place.
All streams of a run are pulled by one driver thread; only jobs run elsewhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from penstock.core.block import Block
from penstock.core.errors import TooLarge
from penstock.core.events import Events
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.engine.buffers.array_memory import ArrayMemory
from penstock.engine.buffers.batch import SlabPool
from penstock.engine.buffers.blocks import BlockBuffers
from penstock.engine.buffers.blocks_in_use import BlocksInUse
from penstock.engine.buffers.leased_rows import Elements
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.placement import Places
from penstock.engine.workers.threads import Job, Part, Pool
from penstock.engine.workers.tune import Tuner
from penstock.memory.budget import Budget, Lease
from penstock.order.permutation import Key

State = Any
"""JSON: None, numbers, strings, lists and dicts of them. None is the start."""


@dataclass
class Piece:
    """Some elements in order, and the stream's state right after them.

    `before` is given where the piece is better read again from another state than the one after its predecessor.
    """

    elements: Elements
    after: State
    before: State = None


@dataclass
class Context:
    """What all streams of one run share."""

    budget: Budget
    pool: Pool
    slabs: SlabPool
    events: Events
    epoch: tuple[int, ...] = (0,)
    sharded: bool = False
    most_nbytes: int = 1 << 62
    look: Callable[[], None] = lambda: None
    read_ahead: ReadAhead = field(default_factory=lambda: ReadAhead())
    places: Places | None = None
    buffers: BlockBuffers | None = None
    arrays: ArrayMemory | None = None
    tuner: Tuner | None = None
    blocks_in_use: dict[int, BlocksInUse] = field(default_factory=dict)
    held_back: set[Callable[[], None]] = field(default_factory=set)

    def apply(self, fused: Fused, block: Block, key: Key) -> Block:
        """Users' functions on the rows of a block, wherever they run best."""
        with self._lending():
            if self.places is None:
                return fused(block, key, self.memory)
            result = self.places.run(fused, block, key, self.memory)
        assert result is not None
        return result

    def apply_to_batch(self, fused: Fused, batch: Block, key: Key) -> Block | None:
        """Users' functions on a batch as one element; None if a filter drops it."""
        with self._lending():
            if self.places is None:
                return fused.on_batch(batch, key, self.memory)
            return self.places.run(fused, batch, key, self.memory, whole=True)

    @property
    def memory(self) -> Buffers:
        """What sources and the engine's own steps fill."""
        return NEW_MEMORY if self.buffers is None else self.buffers

    def _lending(self) -> AbstractContextManager[None]:
        """The arrays that users' functions make lie in memory that is used again."""
        return nullcontext() if self.arrays is None else self.arrays.lent()

    def tick(self, waited_s: float) -> None:
        """At each hand-over, with how long the consumer has waited: held back reads may start, the tuner looks."""
        for read_on in tuple(self.held_back):
            self.held_back.discard(read_on)
            read_on()
        if self.tuner is not None:
            self.tuner.tick(waited_s)

    def lease(self, nbytes: int, *, who: str, must: bool) -> Lease | None:
        """A lease if there is room; if it `must` be, one that may overdraw, for without it nothing would ever move.

        The watchdog may have shrunk the budget below what one piece needs. That piece is still read, alone; what is
        larger than the budget was at the start of the run is refused.
        """
        self.look()
        if nbytes > self.most_nbytes:
            raise TooLarge(who=who, nbytes=nbytes, limit=self.most_nbytes, change="Ask for smaller pieces")
        lease = self.budget.try_lease(nbytes, who=who) if nbytes <= self.budget.total else None
        if lease is None and self.buffers is not None and self.buffers.drop_idle():
            lease = self.budget.try_lease(nbytes, who=who) if nbytes <= self.budget.total else None
        return self.budget.force(nbytes, who=who) if lease is None and must else lease


class ReadAhead:
    """How far stages may run ahead, in jobs per thread. The watchdog narrows it, the tuner widens it."""

    def __init__(self, jobs_per_thread: float = 1.5) -> None:
        self.jobs_per_thread = jobs_per_thread
        self.factor = 1.0

    def jobs(self, threads: int, parts: int = 1) -> int:
        """Jobs that a stage may have under way or finished and not yet taken.

        Where a job is of several `parts`, those behind the first job keep the threads busy: fewer jobs will do.
        """
        wanted = max(1, round(self.jobs_per_thread * threads * self.factor))
        return min(wanted, 1 + math.ceil(wanted / parts))


class Stream(ABC):
    """Elements in a fixed order."""

    @abstractmethod
    def pull(self) -> Piece | None:
        """The next piece, or None at the end (and ever after)."""

    def start(self) -> State:
        """The state before the first piece, where None does not say enough (a sharded chain knows its rank)."""
        return None

    def ready(self) -> bool:
        """Whether `pull` would return without waiting for a job."""
        return True

    def has(self, pieces: int) -> bool:
        """Whether so many pulls would, as far as is known."""
        return self.ready()

    def all_started(self) -> bool:
        """Whether all there is to read is under way, so that workers will be idle soon. False where it is not known."""
        return False

    def expect(self, now: int, window: int) -> None:
        """Learn that `now` more pieces are wanted at once, and that a window takes so many.

        What is read beyond these waits until the window before is let go.
        """

    def close(self) -> None:
        """Let go of files and inner streams."""


class Lookahead:
    """Jobs under way, taken in the order in which they were given."""

    def __init__(self, context: Context, *, who: str, urgency: int, parts: int = 1) -> None:
        self._context, self._who, self._urgency, self._parts = context, who, urgency, parts
        self._jobs: deque[tuple[Job, Any]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> bool:
        """Whether another job may start by count; its lease decides by bytes."""
        return len(self._jobs) < self._context.read_ahead.jobs(self._context.pool.size, self._parts)

    @property
    def head_done(self) -> bool:
        """Whether the next result is there."""
        return bool(self._jobs) and self._jobs[0][0].done

    def lease(self, nbytes: int) -> Lease | None:
        """A lease for another job. The first job always gets one: without it nothing would ever move."""
        return self._context.lease(nbytes, who=self._who, must=not self._jobs)

    def start(self, parts: Sequence[Part], tag: Any) -> None:
        """Run a job; `tag` comes back with its result."""
        self._jobs.append((self._context.pool.submit(parts, urgency=self._urgency), tag))

    def take(self) -> tuple[Any, Any]:
        """Wait for the oldest job: its result and its tag."""
        job, tag = self._jobs.popleft()
        return job.wait(), tag

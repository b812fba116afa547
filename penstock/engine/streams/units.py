"""Reading a source of units: blocks in a fixed order, several units under way at once.

Covers: opening units ahead, reading their parts one after the other, the state of a half-read cycle.
Does not cover: mixing rows (window_shuffle.py), sources of single rows (rows.py).

The order is that of a round over `cycle` open units, a block from each in turn; a unit that ends gives its turn to
the next unit of the order. Which blocks are ready first does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.core.block import Block
from penstock.core.errors import PositionError
from penstock.core.source import TellsLastBlock, UnitSource
from penstock.engine.buffers.blocks_in_use import BlocksInUse
from penstock.engine.buffers.leased_rows import Held, Hold
from penstock.engine.streams.stream import Context, Piece, State, Stream
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.threads import Job
from penstock.memory.budget import Lease
from penstock.order.stripe import Stripe

_URGENCY = 20
_TIGHT_NBYTES = 1_000_000_000
_MANY_CYCLES = 2


@dataclass(frozen=True)
class UnitOrder:
    """Which units this rank reads, in which order, and which rows of them (all, or every n-th)."""

    unit_at: Callable[[int], int]
    total: int
    stripe: Stripe = Stripe()
    keep: tuple[int, int] = (0, 1)

    @property
    def count(self) -> int:
        return self.stripe.count(self.total)

    def unit(self, local: int) -> int:
        return self.unit_at(self.stripe.place(local))

    def thin(self, block: Block, place: int) -> Block:
        """Every n-th row, where there are fewer units than ranks can share."""
        index, world = self.keep
        if world == 1:
            return block
        return block.take(np.arange((index - place) % world, block.nrows, world))


class _Feed:
    """One open unit: its blocks are read one by one, at most one worker at a time."""

    def __init__(self, owner: UnitBlocks, local: int, part: int) -> None:
        self.local, self.part = local, part
        self._owner = owner
        self._unit = owner.unit(local)
        self._asked = part
        self._one_block = owner.one_block(self._unit)
        self._last = part > 0 and self._one_block
        self._blocks: Iterator[Block] | None = None
        self._job: Job | None = None

    def read_on(self, *, must: bool) -> bool:
        """Start reading the next block unless one is under way or waits; False if there is no room for it."""
        if self._job is not None or self._last:
            return True
        lease = self._owner.lease(self._unit, must=must)
        if lease is None:
            return False
        hold = Hold(lease)
        self._owner.out.begin(hold)
        self._job = self._owner.context.pool.submit([lambda: self._read(lease, hold)], urgency=_URGENCY)
        return True

    @property
    def started(self) -> bool:
        """Whether its next block is under way, or none is left."""
        return self._last or self._job is not None

    @property
    def under_way(self) -> bool:
        return self._job is not None and not self._job.done

    @property
    def ready(self) -> bool:
        return self._last or (self._job is not None and self._job.done)

    @property
    def ended(self) -> bool:
        """Whether it is known that the unit has no further block."""
        job = self._job
        if job is None:
            return self._last
        return job.done and job.result is None and job.error is None

    def take(self) -> Held | None:
        """The next block, waited for; None at the end of the unit."""
        job, self._job = self._job, None
        if job is None:
            return None
        found: Held | None = job.wait()
        self._last = found is None or self._one_block
        return found

    def _read(self, lease: Lease, hold: Hold) -> Held | None:
        with lease.filling():
            if self._blocks is None:
                self._blocks = iter(self._owner.open(self._unit, self._asked))
            block = next(self._blocks, None)
            if block is None:
                return None
            block = self._owner.prepared(block, self.local, self._asked)
        self._asked += 1
        if self._one_block:
            self._close()  # now, not with its turn: what its frame still holds is not on lease
        if self._owner.context.most_nbytes < _TIGHT_NBYTES:
            # Arrow keeps freed buffers per thread. Giving them back costs a fifth more processor time in page
            # faults and saves some 70 MB (both measured): right only where memory is short.
            pa.default_memory_pool().release_unused()
        lease.resize(block.nbytes)
        return Held(block, hold)

    def close(self) -> None:
        if self._job is None or self._job.done:
            self._close()

    def _close(self) -> None:
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


class UnitBlocks(Stream):
    """The blocks of a source in order, transformed on the way."""

    def __init__(
        self, context: Context, source: UnitSource, order: UnitOrder, *, cycle: int, fused: Fused, state: State
    ) -> None:
        self.context, self._source, self._order, self._fused = context, source, order, fused
        self._cycle = max(1, cycle)
        self._slots: list[_Feed] = []
        self._ahead: deque[_Feed] = deque()
        self._turn, self._next = 0, 0
        if state is not None:
            if state.get("of", order.total) != order.total:
                raise PositionError(
                    f"The position counts {state['of']} units of {source.label}; now there are {order.total}. The rows "
                    "were shuffled through another copy of the data, such as a row store that is not there any more."
                )
            self._turn, self._next = state["turn"], state["next"]
            self._slots = [_Feed(self, local, part) for local, part in state["open"]]
        self._opened = self._next
        # Blocks of scattered pieces come from a view of the source that each epoch makes anew.
        self.out = context.blocks_in_use.setdefault(id(getattr(source, "base", source)), BlocksInUse())
        self._wanted, self._told = 0, False
        self._remote = bool(getattr(source, "remote", False))
        if self._remote:  # reads that wait for a store leave a thread to those who make batches of what is there
            context.pool.resize(max(context.pool.size, context.pool.cores + 1))

    def start(self) -> State:
        """Shuffled, what is read may be a copy of the data: a position says which, from the first row on."""
        return self._state() if self._cycle > 1 and not self._slots else None

    def pull(self) -> Piece | None:
        if not self._told:  # the first window of an epoch is begun: it will take as many as those before
            self._wanted, self._told = self.out.window, True
        while True:
            self._read_ahead(needed=True)
            if not self._slots:
                self._source.on_error.ended(whole=self._order.stripe.world == 1)
                return None
            feed = self._slots[self._turn]
            feed.read_on(must=True)
            found = feed.take()
            if found is None and feed.part == 0:
                feed.part = 1  # an empty unit has used its turn and is replaced like one that ended: see _replace_ended
                self._turn = (self._turn + 1) % len(self._slots)
                continue
            if found is None:
                self._replace(feed)
                continue
            feed.part += 1
            self._wanted -= 1
            feed.read_on(must=False)
            self._turn = (self._turn + 1) % len(self._slots)
            if found.nrows:
                assert isinstance(found.hold, Hold)
                self.out.give(found.hold)
                return Piece(found, self._state())

    def ready(self) -> bool:
        self._read_ahead()
        return not self._slots or self._slots[self._turn].ready

    def has(self, pieces: int) -> bool:
        """Of open units; no more than may be read ahead."""
        self._read_ahead()
        turns = len(self._slots)
        return all(self._slots[(self._turn + i) % turns].ready for i in range(min(pieces, turns, self._allowed())))

    def all_started(self) -> bool:
        # Of few units, those that are open may have a long way to go.
        opened = self._opened >= self._order.count >= _MANY_CYCLES * self._cycle and not self._ahead
        return opened and all(feed.started for feed in self._slots)

    def expect(self, now: int, window: int) -> None:
        self._wanted, self._told = now, True
        self.out.window = max(window, self.out.window)

    def close(self) -> None:
        self.context.held_back.discard(self._read_ahead)
        for feed in (*self._slots, *self._ahead):
            feed.close()
        # Feeds refer to this stream and hold blocks: without this they would wait for a garbage collection.
        self._slots.clear()
        self._ahead.clear()

    # What a feed needs from its owner.

    def unit(self, local: int) -> int:
        """The source's number of a unit, from the place in this rank's order: a permutation, so asked once."""
        return self._order.unit(local)

    def lease(self, unit: int, *, must: bool) -> Lease | None:
        """Bytes for one more block of a unit; None if there is no room, or if it can wait for a window to be let go."""
        if not must and (self._holds_enough() or self._waits_enough()):
            self.context.held_back.add(self._read_ahead)
            return None
        nbytes = self._source.unit_nbytes(unit)
        return self.context.lease(nbytes, who=f"read {self._source.label}", must=must)

    def open(self, unit: int, part: int) -> Iterator[Block]:
        return self._source.open(unit, part, self.context.memory)

    def one_block(self, unit: int) -> bool:
        """Whether it is known that nothing comes after the first block of a unit."""
        source = self._source
        return isinstance(source, TellsLastBlock) and source.one_block(unit)

    def prepared(self, block: Block, local: int, part: int) -> Block:
        """The block as it leaves: thinned for this rank, mapped and filtered."""
        self._source.on_error.good(block.nrows)
        place = self._order.stripe.place(local)
        block = self._order.thin(block, place)
        if not self._fused.steps:
            return block
        return self.context.apply(self._fused, block, (*self.context.epoch, place, part))

    def _replace(self, ended: _Feed) -> None:
        """Give the turn to the next unit; if there is none, the turn is dropped."""
        ended.close()
        if self._ahead or self._opened < self._order.count:
            self._slots[self._turn] = self._ahead.popleft() if self._ahead else self._open_next()
            self._next += 1
            return
        self._slots.pop(self._turn)
        self._turn = self._turn % len(self._slots) if self._slots else 0

    def _open_next(self) -> _Feed:
        feed = _Feed(self, self._opened, 0)
        self._opened += 1
        return feed

    def _read_ahead(self, *, needed: bool = False) -> None:
        """Fill the cycle, then start feeds as far as count and budget allow, the first in any case if `needed`."""
        while len(self._slots) < self._cycle and self._next < self._order.count:
            self._slots.append(self._ahead.popleft() if self._ahead else self._open_next())
            self._next += 1
        self._replace_ended()
        allowed, turns = self._allowed(), len(self._slots)
        first = needed or not self._holds_enough()
        for step in range(min(turns, allowed)):
            if not self._slots[(self._turn + step) % turns].read_on(must=first and step == 0):
                return
        for feed in self._ahead:
            if not feed.read_on(must=False):
                return
        while turns + len(self._ahead) < allowed and self._opened < self._order.count:
            feed = self._open_next()
            self._ahead.append(feed)
            if not feed.read_on(must=False):
                return

    def _holds_enough(self) -> bool:
        """Whether reading on can wait for a window to be let go; but for a block a thread, or cores would rest."""
        tight = self.context.most_nbytes < _TIGHT_NBYTES
        return self.out.full(max(self._wanted, 0 if tight else self.context.pool.size), self._allowed())

    def _waits_enough(self) -> bool:
        """Whether all threads but one are waiting for a store."""
        under_way = sum(feed.under_way for feed in (*self._slots, *self._ahead))
        return self._remote and under_way >= max(1, self.context.pool.size - 1)

    def _allowed(self) -> int:
        """Blocks that may be under way or wait for their turn."""
        allowed = self.context.read_ahead.jobs(self.context.pool.size)
        if self.context.most_nbytes < _TIGHT_NBYTES:  # no block waits for its turn where memory is short
            return min(allowed, self.context.pool.size)
        # A store's answers take as long as the consumer's steps: the next window is fetched while this one is used.
        return max(allowed, self.out.window) if self._remote else allowed

    def _replace_ended(self) -> None:
        """Give the turns of units that ended to the next ones before their turn comes, so that those are read by then.

        In the order of turns and only as far as is decided: who gets which turn must not depend on timing. A unit that
        was just opened keeps its turn, even if it proves to be empty: then it is replaced a round later.
        """
        turns = len(self._slots)
        for step in range(turns):
            at = (self._turn + step) % turns
            feed = self._slots[at]
            if feed.part == 0:
                continue
            if not feed.ready or (feed.ended and not self._ahead and self._opened >= self._order.count):
                return
            if feed.ended:
                feed.close()
                self._slots[at] = self._ahead.popleft() if self._ahead else self._open_next()
                self._next += 1

    def _state(self) -> State:
        return {
            "open": [[feed.local, feed.part] for feed in self._slots],
            "turn": self._turn,
            "next": self._next,
            "of": self._order.total,
        }

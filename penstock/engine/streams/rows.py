"""Reading a source of single rows: any order, each row fetched and decoded once.

Covers: blocks of rows for general chains, and whole batches decoded straight into their buffer.
Does not cover: sources of units (units.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Schema
from penstock.core.source import RowSource
from penstock.engine.buffers.batch import rows_of
from penstock.engine.buffers.leased_rows import BatchList, Held, Hold
from penstock.engine.prepare.finish import Finish
from penstock.engine.streams.rank_stretches import RankRows
from penstock.engine.streams.stream import Context, Lookahead, Piece, State, Stream
from penstock.engine.streams.transform import Fused
from penstock.memory.budget import Lease
from penstock.order.stripe import Stripe

_URGENCY = 20
_ROWS_PER_PART = 8
"""Rows decoded by one call: enough to hide Python, few enough that two threads share a batch (measured)."""

_PART_NBYTES = 1_000_000
"""Small rows are read in larger parts, up to so many bytes."""


@dataclass(frozen=True)
class RowOrder:
    """Which rows this rank reads, in which order."""

    rows_at: Callable[[np.ndarray], np.ndarray]
    total: int
    stripe: Stripe = Stripe()

    @property
    def count(self) -> int:
        return self.stripe.count(self.total)

    def rows(self, first: int, last: int) -> np.ndarray:
        """Row numbers for local counters first..last-1."""
        return self.rows_at(self.stripe.places(first, last))

    @property
    def start(self) -> State:
        return None

    def after(self, count: int) -> State:
        """The state of a stream that has read so many rows."""
        return count


class _Fetcher:
    """Fetch, then decode: with more threads than processors, only as many decode at a time as there are processors."""

    def __init__(self, context: Context, source: RowSource) -> None:
        self._source = source
        self._context = context
        self._cores = context.pool.cores
        self._gate = threading.BoundedSemaphore(self._cores)

    def _compute(self) -> Any:
        return self._gate if self._context.pool.size > self._cores else nullcontext()

    def block(self, rows: np.ndarray) -> Block:
        fetched, memory = self._source.fetch(rows), self._context.memory
        with self._compute():
            return self._source.decode(fetched, memory)

    def into(self, rows: np.ndarray, out: dict[str, np.ndarray], finish: Finish | None) -> None:
        fetched, memory = self._source.fetch(rows), self._context.memory
        with self._compute():
            if finish is None:
                self._source.decode_into(fetched, out, memory)
                return
            hold = Hold(self._context.budget.force(finish.nbytes(len(rows)), who="prepare"))
            rooms = finish.rooms(out, memory)
            self._source.decode_into(fetched, rooms, memory)
            numbered: Callable[[np.ndarray], np.ndarray] | None = getattr(self._source, "numbers", None)
            finish(rooms, out, rows if numbered is None else numbered(rows), memory)
            del rooms, hold


def rows_per_part(schema: Schema, rows: int) -> int:
    """How many rows one job part reads."""
    return max(1, min(rows, max(_ROWS_PER_PART, _PART_NBYTES // max(1, schema.row_nbytes))))


class RowBlocks(Stream):
    """Rows in order, as blocks, transformed on the way."""

    def __init__(
        self, context: Context, source: RowSource, order: RowOrder, *, chunk: int, fused: Fused, state: State
    ) -> None:
        self._context, self._source, self._order, self._fused = context, source, order, fused
        self._chunk = chunk
        self._fetcher = _Fetcher(context, source)
        self._jobs = Lookahead(context, who=f"read {source.label}", urgency=_URGENCY)
        self._row_nbytes = source.schema().row_nbytes
        self._at = 0 if state is None else state

    def pull(self) -> Piece | None:
        while True:
            self._fill()
            if not len(self._jobs):
                self._source.on_error.ended(whole=self._order.stripe.world == 1)
                return None
            held, after = self._jobs.take()
            self._fill()
            if held.nrows:
                return Piece(held, after)

    def ready(self) -> bool:
        self._fill()
        return not len(self._jobs) or self._jobs.head_done

    def all_started(self) -> bool:
        return self._at >= self._order.count

    def _fill(self) -> None:
        while self._jobs.room and self._at < self._order.count:
            end = min(self._at + self._chunk, self._order.count)
            lease = self._jobs.lease((end - self._at) * self._row_nbytes + self._source.fetch_nbytes(end - self._at))
            if lease is None:
                return
            self._jobs.start([_reading(self, self._at, end, lease)], end)
            self._at = end

    def read(self, first: int, last: int, lease: Lease, hold: Hold) -> Held:
        """Runs in a worker: the rows of local counters first..last-1."""
        block = self._fetcher.block(self._order.rows(first, last))
        self._source.on_error.good(block.nrows)
        if self._fused.steps:
            block = self._context.apply(self._fused, block, (*self._context.epoch, self._order.stripe.place(first)))
        lease.resize(block.nbytes)
        self._row_nbytes = max(self._row_nbytes, block.nbytes // max(1, block.nrows))
        return Held(block, hold)


def _reading(stream: RowBlocks, first: int, last: int, lease: Lease) -> Callable[[], Held]:
    hold = Hold(lease)  # made now: a job that is dropped unread gives its bytes back too
    return lambda: stream.read(first, last, lease, hold)


class RowBatches(Stream):
    """Batches of a fixed schema, decoded straight into their buffer: index in, batch out, nothing in between."""

    def __init__(
        self,
        context: Context,
        source: RowSource,
        order: RowOrder | RankRows,
        *,
        size: int,
        drop_last: bool,
        at: int,
        finish: Finish | None = None,
    ) -> None:
        self._context, self._source, self._order, self._size = context, source, order, size
        self._finish = finish
        self._schema = source.schema() if finish is None else finish.after
        self._fetcher = _Fetcher(context, source)
        self._step = rows_per_part(self._schema, size)
        self._jobs = Lookahead(context, who="batches", urgency=_URGENCY, parts=-(-size // self._step))
        self._count = order.count // size * size if drop_last else order.count
        self._at = at

    def pull(self) -> Piece | None:
        self._fill()
        if not len(self._jobs):
            return None
        _, (arrays, after) = self._jobs.take()
        self._source.on_error.good(len(next(iter(arrays.values()))))
        batch = Block(arrays, self._schema.tree)
        return Piece(BatchList([batch], None), self._order.after(after))

    def start(self) -> State:
        return self._order.start

    def ready(self) -> bool:
        self._fill(early=True)
        return self._jobs.head_done or (not len(self._jobs) and self._at >= self._count)

    def all_started(self) -> bool:
        return self._at >= self._count

    def _fill(self, early: bool = False) -> None:
        """Start batches; `early` if they are not yet waited for, as at the end of the epoch before."""
        while self._jobs.room and self._at < self._count:
            end = min(self._at + self._size, self._count)
            # A ragged end takes a full buffer: the next epoch's batches will want one of that size.
            must = not len(self._jobs) and not early
            arrays = self._context.slabs.arrays(self._schema, self._size, must=must, spare=early)
            if arrays is None:
                return
            arrays = rows_of(arrays, 0, end - self._at)
            parts = [
                self._part(first, min(first + self._step, end), arrays) for first in range(self._at, end, self._step)
            ]
            self._jobs.start(parts, (arrays, end))
            self._at = end

    def _part(self, first: int, last: int, arrays: dict[str, np.ndarray]) -> Callable[[], None]:
        out = rows_of(arrays, first - self._at, last - self._at)
        return lambda: self._fetcher.into(self._order.rows(first, last), out, self._finish)

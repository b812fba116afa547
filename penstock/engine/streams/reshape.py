"""Verbs that change which elements come, not what they are: take, skip, shard, repeat, unbatch, and maps of elements.

Covers: the streams of these verbs with their states.
Does not cover: batching (batch.py), joining several streams (combine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import DataError
from penstock.core.schema import OBJECT
from penstock.engine.buffers.leased_rows import BatchList, Elements, Held, Hold, Window, joined
from penstock.engine.streams.batch import ElementCutter
from penstock.engine.streams.stream import Context, Lookahead, Piece, State, Stream
from penstock.engine.streams.transform import Fused
from penstock.memory.budget import Lease
from penstock.order.permutation import Key

_MAP_URGENCY = 15
_EMPTY_ROUNDS = 64
"""Rounds of repeat without a row in a row, after which a rank ends."""


class TakeStream(Stream):
    """The first `count` elements."""

    def __init__(self, inner: Stream, count: int, state: State) -> None:
        self._inner = inner
        self._left = count if state is None else state["left"]

    def pull(self) -> Piece | None:
        if self._left <= 0:
            return None
        piece = self._inner.pull()
        if piece is None:
            return None
        elements = piece.elements.slice(0, self._left)
        self._left -= elements.nrows
        return Piece(elements, {"in": piece.after, "left": self._left})

    def ready(self) -> bool:
        return self._left <= 0 or self._inner.ready()

    def close(self) -> None:
        self._inner.close()


class SkipStream(Stream):
    """All but the first `count` elements."""

    def __init__(self, inner: Stream, count: int, state: State) -> None:
        self._inner = inner
        self._left = count if state is None else state["left"]

    def pull(self) -> Piece | None:
        while (piece := self._inner.pull()) is not None:
            skipped = min(self._left, piece.elements.nrows)
            self._left -= skipped
            if skipped < piece.elements.nrows:
                elements = piece.elements.slice(skipped, piece.elements.nrows)
                return Piece(elements, {"in": piece.after, "left": self._left})
        return None

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()


class Stride(Stream):
    """Every `world`-th element, for chains whose source cannot be divided."""

    def __init__(self, inner: Stream, index: int, world: int, state: State) -> None:
        self._inner, self._index, self._world = inner, index, world
        self._seen = 0 if state is None else state["seen"]

    def pull(self) -> Piece | None:
        while (piece := self._inner.pull()) is not None:
            first = (self._index - self._seen) % self._world
            self._seen = (self._seen + piece.elements.nrows) % self._world
            picked = pick(piece.elements, np.arange(first, piece.elements.nrows, self._world))
            if picked.nrows:
                return Piece(picked, {"in": piece.after, "seen": self._seen})
        return None

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()


def pick(elements: Elements, rows: np.ndarray) -> Elements:
    """Some of the elements, in the given order."""
    if isinstance(elements, BatchList):
        return BatchList([elements.batches[i] for i in rows], elements.hold)
    return Window([elements.block()], rows, elements.hold)


class RepeatStream(Stream):
    """The inner stream again and again, each time with the order of a new epoch.

    With `ahead`, the next epoch begins to be read when all of this one is under way: workers never stand still.
    """

    def __init__(
        self,
        build: Callable[[State, int], Stream],
        count: int | None,
        state: State,
        *,
        ahead: bool = False,
        sharded: bool = False,
    ) -> None:
        self._build, self._count, self._ahead = build, count, ahead
        # An empty dataset repeated is empty, not an endless search; but a rank may get no row in one round only.
        self._empty_most = _EMPTY_ROUNDS if sharded else 1
        self._next: Stream | None = None
        self._round = 0 if state is None else state["round"]
        self._inner = build(None if state is None else state["in"], self._round)
        self._empty = 0
        # Where the number of ranks has changed, the division of some rounds to come is given.
        self._later: list[State] = [] if state is None else list(state.get("later", []))
        self._begun, self._any = False, state is not None
        self._start = None if self._inner.start() is None else self._state(self._inner.start())

    def start(self) -> State:
        return self._start

    def pull(self) -> Piece | None:
        while self._count is None or self._round < self._count:
            piece = self._inner.pull()
            if piece is not None:
                self._empty, self._any = 0, True
                self._look_ahead()
                return Piece(piece.elements, self._state(piece.after), self._before(piece))
            self._empty += not self._any
            if self._empty >= self._empty_most:
                return None
            self._inner.close()
            self._inner, self._next = self._next or self._following(), None
            self._round += 1
            self._any = bool(self._later)
            self._later = self._later[1:]
            self._begun = True
        return None

    def _state(self, inner: State) -> State:
        state = {"in": inner, "round": self._round}
        return {**state, "later": self._later} if self._later else state

    def _before(self, piece: Piece) -> State:
        """The state of a piece that opens a round or a stretch: not the one after its predecessor."""
        begun, self._begun = self._begun, False
        inner = piece.before if piece.before is not None else (self._inner.start() if begun else None)
        return None if inner is None else self._state(inner)

    def _following(self) -> Stream:
        return self._build(self._later[0] if self._later else None, self._round + 1)

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()
        if self._next is not None:
            self._next.close()

    def _look_ahead(self) -> None:
        last = self._count is not None and self._round + 1 >= self._count
        if not self._ahead or last or not self._inner.all_started():
            return
        if self._next is None:
            self._next = self._following()
        self._next.ready()


class UnbatchStream(Stream):
    """Batches back to rows."""

    def __init__(self, context: Context, inner: Stream) -> None:
        self._context, self._inner = context, inner

    def pull(self) -> Piece | None:
        while (piece := self._inner.pull()) is not None:
            rows = self._rows(piece.elements)
            if rows.nrows:
                return Piece(rows, piece.after)
        return None

    def _rows(self, elements: Elements) -> Held:
        if not isinstance(elements, BatchList):
            held = joined(elements, self._context.budget)
            return Held(_opened(held.block()), held.hold)
        if len(elements.batches) == 1:
            return Held(elements.batches[0], elements.hold)
        nbytes = sum(batch.nbytes for batch in elements.batches)
        hold = Hold(self._context.budget.force(nbytes, who="joined rows"))
        # Rows that NumPy cannot hold may still be seen in the batches: these stay, with what pays for them.
        return Held(Block.concat(list(elements.batches)), (elements.hold, hold))

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()


def _opened(block: Block) -> Block:
    """Rows that are arrays themselves, one level down."""
    columns: dict[str, Any] = {}
    for name, column in block.columns.items():
        if isinstance(column, np.ndarray) and column.dtype != OBJECT and column.ndim > 1:
            columns[name] = column.reshape(-1, *column.shape[2:])
        elif isinstance(column, np.ndarray) and column.dtype == OBJECT and isinstance(column[0], np.ndarray):
            columns[name] = np.concatenate(list(column))
        else:
            raise DataError(f"unbatch: column {name!r} holds single values, not batches.")
    return Block(columns, block.tree, block.origin)


class MapElements(Stream):
    """Maps and filters that could not be fused into reading, run by workers in pieces of `chunk` elements."""

    def __init__(self, context: Context, inner: Stream, fused: Fused, *, chunk: int, state: State) -> None:
        self._context, self._fused, self._chunk = context, fused, chunk
        self._cut = ElementCutter(inner, None if state is None else state["in"])
        self._count = 0 if state is None else state["count"]
        self._jobs = Lookahead(context, who=str(fused), urgency=_MAP_URGENCY)
        self._ended = False
        self._growth = 1.0

    def pull(self) -> Piece | None:
        while True:
            self._fill()
            if not len(self._jobs):
                return None
            elements, after = self._jobs.take()
            if elements.nrows:
                return Piece(elements, after)

    def start(self) -> State:
        return None if self._cut.start() is None else {"in": self._cut.start(), "count": 0}

    def ready(self) -> bool:
        return self._jobs.head_done or (not len(self._jobs) and not self._ended and self._cut.ready())

    def all_started(self) -> bool:
        return self._cut.all_started()

    def close(self) -> None:
        self._cut.close()

    def _fill(self) -> None:
        while not self._ended and self._jobs.room:
            wait = not self._jobs.head_done
            rows = self._cut.fill(1, wait=wait)
            if not rows:
                self._ended = wait
                return
            elements = self._cut.take(min(rows, self._chunk))[0]
            lease = self._jobs.lease(_nbytes(elements))
            if lease is None:  # elements are taken already: they go on with a lease that may overdraw
                lease = self._context.budget.force(_nbytes(elements), who=str(self._fused))
            key = (*self._context.epoch, "map", self._count)
            self._count += 1
            after = {"in": self._cut.state(), "count": self._count}
            self._jobs.start([_mapping(self._context, self._fused, elements, key, lease)], after)


def _nbytes(elements: Elements) -> int:
    if isinstance(elements, BatchList):
        return sum(b.nbytes for b in elements.batches)
    return max(1, elements.sample().schema.row_nbytes) * elements.nrows


def _mapping(context: Context, fused: Fused, elements: Elements, key: Key, lease: Lease) -> Callable[[], Elements]:
    hold = Hold(lease)

    def run() -> Elements:
        if isinstance(elements, BatchList):
            mapped = (context.apply_to_batch(fused, batch, (*key, i)) for i, batch in enumerate(elements.batches))
            batches = [batch for batch in mapped if batch is not None]
            lease.resize(sum(b.nbytes for b in batches))
            return BatchList(batches, hold)
        block = context.apply(fused, elements.block(), key)
        lease.resize(block.nbytes)
        return Held(block, hold)

    return run

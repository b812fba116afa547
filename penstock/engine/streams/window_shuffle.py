"""A window of blocks whose rows leave in random order.

Covers: how many blocks are open together, their order, the state inside a window.
Does not cover: the order of units (units.py), exact shuffles of rows (order/permutation.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.core.block import Block
from penstock.core.source import BLOCK_NBYTES
from penstock.engine.buffers.leased_rows import BatchList, Elements, Held, Hold, Window, batch_as_row
from penstock.engine.streams.stream import Context, Piece, State, Stream
from penstock.order.permutation import generator
from penstock.order.position import progress

WINDOW_NBYTES = 3 * BLOCK_NBYTES - BLOCK_NBYTES // 4
"""Default width: three blocks, also where blocks are a little smaller than their source aims at.

It does not depend on the budget, so that neither does the order of rows (invariant 5).
"""

_ORDER_NBYTES = 8


@dataclass(frozen=True)
class Width:
    """When a window is full: so many rows, bytes or blocks, whichever comes first."""

    rows: int | None = None
    nbytes: int = field(default_factory=lambda: WINDOW_NBYTES)
    blocks: int = 1 << 60

    def even(self, count: int, block_nbytes: int) -> Width:
        """The width at which `count` blocks of about one size fill equal windows, as few as there would be otherwise.

        A last window of one block would mix that block with nothing. Blocks are counted, so that some larger than
        expected do not leave such a rest after all.
        """
        if self.rows is not None or count < 1:
            return self
        fit = -(-self.nbytes // max(1, block_nbytes))
        windows = -(-count // fit)
        return replace(self, blocks=-(-count // windows), nbytes=self.nbytes + self.nbytes // 4)


class WindowShuffle(Stream):
    """Pulls blocks until the window is full, then shows its rows in an order fixed by key and window number."""

    def __init__(self, context: Context, inner: Stream, width: Width, key: tuple[int | str, ...], state: State) -> None:
        self._context, self._inner, self._width, self._key = context, inner, width, key
        self._number = 0 if state is None else state["window"]
        self._before: State = None if state is None else state["in"]
        self._carry: Elements | None = None
        self._last_after: State = None
        self._carried = 0 if state is None else state["carry"]
        self._blocks = 0

    def pull(self) -> Piece | None:
        blocks, holds, inner_after = self._gather()
        if not blocks:
            return None
        self._blocks = max(self._blocks, len(blocks))
        self._inner.expect(0, self._blocks)
        self._inner.ready()  # the block that was taken last leaves room to read one ahead
        rows = sum(b.nrows for b in blocks)
        holds.append(Hold(self._context.budget.force(_ORDER_NBYTES * rows, who="shuffle order")))
        order = generator(*self._key, self._number).permutation(rows)
        self._number += 1
        window = Window(blocks, order, holds)
        self._before = inner_after
        return Piece(window, self._state())

    def start(self) -> State:
        inner = self._inner.start() if self._before is None else None
        return None if inner is None else {"in": inner, "window": self._number, "carry": self._carried}

    def ready(self) -> bool:
        """A window is gathered at once: while a block of it is read, rows that are there go on to the consumer."""
        return self._inner.has(max(1, self._blocks))

    def all_started(self) -> bool:
        return self._inner.all_started()

    def close(self) -> None:
        self._inner.close()

    def _gather(self) -> tuple[list[Block], list[object], State]:
        blocks: list[Block] = []
        holds: list[object] = []
        rows, nbytes, inner_after = 0, 0, self._before
        while True:
            if self._blocks:
                self._inner.expect(max(1, self._blocks - len(blocks)), self._blocks)
            elements, before = self._next(inner_after)
            if elements is None:
                return blocks, holds, inner_after
            room = elements.nrows if self._width.rows is None else max(1, self._width.rows - rows)
            used = elements.slice(0, room)
            block = used.block()
            blocks.append(block)
            holds.append(used.hold)
            rows, nbytes = rows + block.nrows, nbytes + block.nbytes
            if room < elements.nrows:  # the window is full in the middle of a block: the rest opens the next one
                self._carry, self._carried = elements.slice(room, elements.nrows), self._carried + room
                return blocks, holds, before
            self._carry, self._carried = None, 0
            inner_after = self._last_after
            if self._full(rows, nbytes, len(blocks)):
                return blocks, holds, inner_after

    def _full(self, rows: int, nbytes: int, blocks: int) -> bool:
        width = self._width
        return nbytes >= width.nbytes or blocks >= width.blocks or (width.rows is not None and rows >= width.rows)

    def _next(self, before: State) -> tuple[Held | Window | None, State]:
        """The carried rest of a block or the next one, and the inner state from which it can be read again."""
        if self._carry is not None:
            assert not isinstance(self._carry, BatchList)
            return self._carry, before
        piece = self._inner.pull()
        if piece is None:
            return None, before
        self._last_after = piece.after
        elements = piece.elements
        if isinstance(elements, BatchList):
            elements = Held(Block.concat([batch_as_row(b) for b in elements.batches]), None)
        if self._carried:  # resumed: the first rows of this block belonged to the window before
            elements = elements.slice(self._carried, elements.nrows)
        return elements, before

    def _state(self) -> State:
        state = {"in": self._before, "window": self._number, "carry": self._carried}
        return {**state, "to": progress(self._last_after)} if self._carried else state

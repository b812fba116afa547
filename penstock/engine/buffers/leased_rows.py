"""Rows on their way through the engine, with the leases that pay for them.

Covers: a lease that ends when its last reader is gone, a window of blocks in mixed order, a list of batches.
Does not cover: the bytes themselves (core/block.py), granting leases (memory/budget.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import OBJECT
from penstock.engine.buffers.gather import rows_by_block, write_rows
from penstock.memory.budget import Budget, Lease


class Hold:
    """Keeps leases until the last reference to it is gone.

    Reference counting is the one bookkeeping that exceptions, breaks and Ctrl-C cannot skip.
    """

    __slots__ = ("__weakref__", "_leases")

    def __init__(self, *leases: Lease | None) -> None:
        self._leases = [lease for lease in leases if lease is not None]

    def __del__(self) -> None:
        for lease in self._leases:
            lease.close()


class AvailableRows(Protocol):
    """Some rows that are there, or that can be gathered at once."""

    @property
    def nrows(self) -> int: ...

    def slice(self, start: int, stop: int) -> AvailableRows: ...

    def block(self) -> Block:
        """The rows as one block."""

    def write(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the rows into arrays of the same length; columns missing in `out` are left alone."""

    def sample(self) -> Block:
        """Any block with the same columns, to learn dtypes from."""


class Held:
    """A block with the leases that pay for it."""

    __slots__ = ("_block", "hold")

    def __init__(self, block: Block, hold: object) -> None:
        self._block, self.hold = block, hold

    @property
    def nrows(self) -> int:
        return self._block.nrows

    def slice(self, start: int, stop: int) -> Held:
        if start == 0 and stop >= self._block.nrows:
            return self
        return Held(self._block.slice(start, stop), self.hold)

    def block(self) -> Block:
        return self._block

    def sample(self) -> Block:
        return self._block

    def write(self, out: Mapping[str, np.ndarray]) -> None:
        for name, array in out.items():
            np.copyto(array, self._block.columns[name], casting="same_kind")


class Window:
    """Several blocks seen as one, in a given order of their rows. Nothing is joined until it is asked for.

    The window is never copied as a whole, so it costs its blocks and no more.
    """

    __slots__ = ("_blocks", "_ends", "_order", "hold")

    def __init__(self, blocks: Sequence[Block], order: np.ndarray, hold: object) -> None:
        self._blocks, self._order, self.hold = blocks, order, hold
        self._ends = np.cumsum([b.nrows for b in blocks], dtype=np.int64)

    @property
    def nrows(self) -> int:
        return len(self._order)

    def slice(self, start: int, stop: int) -> Window:
        return Window(self._blocks, self._order[start:stop], self.hold)

    def sample(self) -> Block:
        return self._blocks[0]

    def block(self) -> Block:
        parts, back = rows_by_block(self._blocks, self._ends, self._order)
        if len(parts) == 1:
            return parts[0][0].take(parts[0][1])
        return Block.concat([b.take(rows) for b, rows in parts]).take(back)

    def write(self, out: Mapping[str, np.ndarray]) -> None:
        write_rows(self._blocks, self._ends, self._order, out)


class BatchList:
    """Elements that are batches themselves. `rows` are those of all of them, where they lie one behind the other."""

    __slots__ = ("batches", "hold", "rows")

    def __init__(self, batches: Sequence[Block], hold: object, rows: Block | None = None) -> None:
        self.batches, self.hold, self.rows = batches, hold, rows

    @property
    def nrows(self) -> int:
        return len(self.batches)

    def slice(self, start: int, stop: int) -> BatchList:
        return BatchList(self.batches[start:stop], self.hold)

    def together(self, first: int) -> tuple[Block, int] | None:
        """The rows of all full batches from one on, and how many batches these are; None where they lie apart."""
        size = self.batches[0].nrows
        count = sum(batch.nrows == size for batch in self.batches) - first  # only the last may have fewer
        if self.rows is None or count < 1:
            return None
        return self.rows.slice(first * size, (first + count) * size), count


Elements = Held | Window | BatchList


def joined(elements: Elements, budget: Budget) -> Held:
    """The elements as one block, leased before they are copied; rows that lie in one block already stay there."""
    if isinstance(elements, Held):
        return elements
    if isinstance(elements, BatchList):
        if len(elements.batches) == 1:
            return Held(batch_as_row(elements.batches[0]), elements.hold)
        nbytes = sum(batch.nbytes for batch in elements.batches)
    else:
        sample = elements.sample()
        nbytes = sample.nbytes * elements.nrows // max(1, sample.nrows)
    hold = Hold(budget.force(nbytes, who="joined rows"))
    if isinstance(elements, BatchList):
        return Held(Block.concat([batch_as_row(batch) for batch in elements.batches]), (elements.hold, hold))
    return Held(elements.block(), hold)  # a copy: the window may go


def batch_as_row(batch: Block) -> Block:
    """A batch as one row of a block, for verbs that treat batches as elements."""
    columns: dict[str, np.ndarray] = {}
    for name, column in batch.columns.items():
        if isinstance(column, np.ndarray) and column.dtype != OBJECT:
            columns[name] = column[None]
        else:
            cell = np.empty(1, dtype=object)
            cell[0] = column
            columns[name] = cell
    return Block(columns, batch.tree, batch.origin)

"""A dataset's rows, block by block, with a position after each.

Covers: pulling blocks out of a run, slices of bounded size, positions that `Dataset.resume` understands.
Does not cover: what runs (engine/), what is done with the rows (run.py).

`iter(dataset)` hands out single samples, which costs some ten microseconds a row of a table. Here rows stay in the
columns in which the source made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.core.block import Block
from penstock.engine.buffers.leased_rows import BatchList
from penstock.engine.build import Builder
from penstock.engine.pipe import pipe
from penstock.engine.run import Run
from penstock.engine.streams.stream import Piece, State
from penstock.memory.budget import Budget
from penstock.order.position import Position, read_position, write_position
from penstock.plan.rewrite import rewrite
from penstock.plan.steps import Node, Shard

if TYPE_CHECKING:
    from penstock.dataset import Dataset


class BlockReader:
    """The first epoch of a dataset in slices; close it, or leave its `with` block."""

    def __init__(self, dataset: Dataset, position: Position | None, most_nbytes: int) -> None:
        self._identity = dataset.identity()
        start = None if position is None else read_position(position, **self._identity)
        state = None if start is None else start["state"]
        self._before: State = None if state is None else state["in"]
        self._used = 0 if state is None else int(state["used"])
        self._done = 0 if start is None else int(start["done"])
        self._most_nbytes = most_nbytes
        self._piece: Piece | None = None
        context, running = pipe().open()
        context.sharded = shard_of(dataset.node) is not None
        node, inner = rewrite(dataset.node), self._before
        self.budget: Budget = context.budget
        self._run = Run(context, lambda: Builder(context).build(node, inner, (0,)), lambda: pipe().close(running))

    def __enter__(self) -> BlockReader:
        self._run.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._piece = None
        self._run.stop()

    def slices(self) -> Iterator[tuple[Block, Any]]:
        """Rows of at most about `most_nbytes`, and whatever must be kept as long as they are."""
        while self._advance():
            assert self._piece is not None
            elements = self._piece.elements
            assert not isinstance(elements, BatchList)  # batches were taken apart
            sample = elements.sample()
            rows = max(1, int(self._most_nbytes * sample.nrows / max(1, sample.nbytes)))
            part = elements.slice(self._used, min(self._used + rows, elements.nrows))
            self._used += part.nrows
            self._done += part.nrows
            yield part.block(), elements.hold
            del part, elements, sample

    def _advance(self) -> bool:
        """Whether there are more rows; afterwards `_piece` is the one that they are in."""
        while self._piece is None or self._used >= self._piece.elements.nrows:
            if self._piece is not None:
                self._before, self._used = self._piece.after, 0
                self._piece = None  # its leases end before the next piece is waited for
            self._piece = self._run.take()
            if self._piece is None:
                return False
            if self._piece.before is not None:
                self._before = self._piece.before
            elif self._before is None:
                self._before = self._run.start_state
        return True

    @property
    def position(self) -> Position:
        """Where the reader stands, right after the last slice."""
        piece = self._piece
        ended = piece is not None and self._used >= piece.elements.nrows
        state = (
            {"in": piece.after, "used": 0} if piece is not None and ended else {"in": self._before, "used": self._used}
        )
        return write_position(
            plan=self._identity["plan"], data=self._identity["data"], epoch=0, done=self._done, state=state
        )


def shard_of(node: Node) -> Shard | None:
    """The division among ranks in a plan, if there is one."""
    if isinstance(node.step, Shard):
        return node.step
    return next((found for child in node.inputs if (found := shard_of(child)) is not None), None)

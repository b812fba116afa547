"""A loader's worker reads its own part of a pass, so that all workers together read everything once.

Covers: where in a plan the division is made.
Does not cover: agreeing on the epoch (epochs.py), ranks of a distributed job (`ds.shard`).

Three ways, the best that holds for the plan:
1. Batches of rows that can be fetched singly: a worker fetches the rows of every n-th batch and no others. The batches
   are exactly those of a pass without workers, and loaders that take workers in turns keep their order.
2. Other samples: samples are divided at the source. Batches are then made of a worker's own samples, so that up to
   n - 1 more of them are not full. With `drop_last` that would lose rows, so it is not done.
3. Anything else: every worker runs the whole plan and keeps every n-th element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.source import RowSource
from penstock.core.wrapped_source import WrappedRows
from penstock.order.permutation import places_of_rows
from penstock.plan.descend import descend
from penstock.plan.rewrite import batched, rewrite
from penstock.plan.steps import Batch, Filter, Map, Node, Read, Shard, Shuffle, Step


@dataclass(frozen=True)
class WorkerPart:
    """Worker `index` of `world`, in a given epoch."""

    index: int
    world: int
    epoch: int


def part_of(node: Node, worker: WorkerPart) -> Node:
    """The plan that yields only this worker's part."""
    plan = rewrite(node)
    above: list[Step] = []
    below = plan
    while isinstance(below.step, (Map, Filter)) and batched(below.input):
        above.insert(0, below.step)
        below = below.input
    found = _batches(below, worker) if isinstance(below.step, Batch) else _samples(below, worker)
    if found is None:
        return Node(Shard(worker.index, worker.world), (plan,))
    return _stacked(found, above)


def _batches(node: Node, worker: WorkerPart) -> Node | None:
    step = node.step
    assert isinstance(step, Batch)
    rows = _own_batches(node.input, step.size, worker)
    if rows is None and not step.drop_last:
        rows = _samples(node.input, worker)
    return None if rows is None else Node(step, (rows,))


def _samples(node: Node, worker: WorkerPart) -> Node | None:
    """Samples divided at the source; None where something in between counts or combines them."""
    steps, read = _chain(node)
    if read is None:
        return None
    ranks = [step for step in steps if isinstance(step, Shard)]
    if not ranks:
        return Node(Shard(worker.index, worker.world), (node,))
    if len(ranks) > 1 or not isinstance(read.step, Read) or not isinstance(read.step.source, RowSource):
        return None
    # The rank's rows are r, r + w, r + 2w, ...; every n-th of them is again a shard. Units are not divided so simply.
    r, w = ranks[0].index, ranks[0].world
    mine = Shard(r + w * worker.index, w * worker.world)
    return _stacked(read, [mine if step is ranks[0] else step for step in steps])


def _own_batches(node: Node, size: int, worker: WorkerPart) -> Node | None:
    """The rows of every n-th batch; None where the number of rows before a batch is not known beforehand."""
    steps, read = _chain(node)
    maps = [step for step in steps if isinstance(step, Map)]
    shuffles = [step for step in steps if isinstance(step, Shuffle)]
    ranks = [step for step in steps if isinstance(step, Shard)]
    if read is None or not isinstance(read.step, Read) or not isinstance(read.step.source, RowSource):
        return None
    policies = [read.step.source.on_error, *(step.on_error for step in maps if step.on_error is not None)]
    skips = any(policy.mode == "skip" for policy in policies)
    ordered = steps[len(steps) - len(maps) :] == maps  # maps come after all ordering
    if skips or not ordered or len(maps) + len(shuffles) + len(ranks) != len(steps) or len(ranks) > 1:
        return None
    seed = shuffles[-1].seed if shuffles else None
    rank = (ranks[0].index, ranks[0].world) if ranks else (0, 1)
    return _stacked(Node(Read(OwnRows(read.step.source, size, worker, rank, seed))), list(maps))


def _chain(node: Node) -> tuple[list[Step], Node | None]:
    """Steps from the source up to here, and the node that reads; None if there is something else in between."""
    steps, below = descend(node, (Map, Filter, Shuffle, Shard))
    return steps, below if isinstance(below.step, Read) else None


def _stacked(node: Node, steps: list[Step]) -> Node:
    for step in steps:
        node = Node(step, (node,))
    return node


class OwnRows(WrappedRows):
    """The rows of a source, in the order of a pass, that belong to a worker's batches."""

    def __init__(
        self, source: RowSource, size: int, worker: WorkerPart, rank: tuple[int, int], seed: int | None
    ) -> None:
        super().__init__(source)
        self._size, self._worker, self._rank = size, worker, rank
        self._total = source.num_rows()
        self._rows_at = places_of_rows(self._total, seed, (worker.epoch,))

    def num_rows(self) -> int:
        """Rows of whole batches dealt in turns, and of the last one if it is this worker's turn."""
        index, world = self._rank
        rows = max(0, -(-(self._total - index) // world))
        whole, rest = divmod(rows, self._size)
        mine = max(0, -(-(whole - self._worker.index) // self._worker.world))
        return mine * self._size + (rest if whole % self._worker.world == self._worker.index else 0)

    def fetch(self, rows: np.ndarray) -> Any:
        return self.source.fetch(self.numbers(rows))

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The rows of the source that the worker's rows are; what is drawn at random for a sample hangs on these."""
        batch, row = np.divmod(rows, self._size)
        places = (batch * self._worker.world + self._worker.index) * self._size + row
        places = places * self._rank[1] + self._rank[0]
        return self._rows_at(places)

"""The last touch on rows as they enter a batch: prepared where they are decoded or gathered, in the batch's own memory.

Covers: known steps (plan/prepare.py) on blocks, and on rows that are written into a recycled batch.
Does not cover: what single steps do (normalise.py, augment.py, mixup.py), users' functions (streams/transform.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.core.block import Block, Column
from penstock.core.schema import Schema
from penstock.core.source import Buffers
from penstock.engine.prepare.augment import Draw, augment_rows, augmented
from penstock.engine.prepare.columns import prepared_schema, targets
from penstock.engine.prepare.mixup import mixed_up
from penstock.engine.prepare.normalise import normalise_into, normalised
from penstock.order.permutation import Key, generator
from penstock.plan.prepare import Augment, Mixup, Normalise, Prepare
from penstock.plan.steps import Step


def prepared(step: Prepare, block: Block, key: Key, buffers: Buffers) -> Block:
    """A known step on the rows of a block, in new memory: what came in may belong to a cache."""
    if isinstance(step, Mixup):
        return mixed_up(step, block, generator("mixup", step.seed, *key), buffers)
    columns: dict[str, Column] = dict(block.columns)
    for leaf, name in targets(step, block.tree).items():
        if isinstance(step, Normalise):
            columns[leaf] = normalised(step, name, columns[leaf], buffers)
        else:
            assert isinstance(step, Augment)
            seed = step.seed
            draw: Draw = lambda row: generator("augment", seed, *key, row)  # noqa: E731
            columns[leaf] = augmented(step, name, columns[leaf], draw, buffers)
    return Block(columns, block.tree, block.origin)


def can_finish(steps: Sequence[Step]) -> bool:
    """Whether steps can be done on the way into a batch: augmentation in place, then at most one change of numbers."""
    return all(isinstance(step, Augment) for step in steps[:-1]) and all(
        isinstance(step, (Augment, Normalise)) for step in steps[-1:]
    )


class Finish:
    """Known steps on rows that go into a batch's memory. `schema` is that of the rows as they come."""

    def __init__(self, steps: Sequence[Step], schema: Schema, epoch: Key = ()) -> None:
        self.schema, self._epoch = schema, epoch
        self._augment = [step for step in steps if isinstance(step, Augment)]
        self._normalise = [step for step in steps if isinstance(step, Normalise)]
        after = schema
        for step in (*self._augment, *self._normalise):
            after = prepared_schema(step, after)
        self.after = after
        self._beside = [f for f, g in zip(schema, after, strict=True) if (f.dtype, f.shape) != (g.dtype, g.shape)]

    def nbytes(self, rows: int) -> int:
        """Bytes beside the batch's own that finishing so many rows takes."""
        return sum(field.row_nbytes for field in self._beside) * rows

    def rooms(self, out: Mapping[str, np.ndarray], buffers: Buffers) -> dict[str, np.ndarray]:
        """Where rows are decoded to: the batch itself where they can be changed in place, else memory beside it."""
        shapes = {f.name: (len(out[f.name]), *(n or 0 for n in f.shape)) for f in self._beside}
        return {**out, **{f.name: buffers.empty(shapes[f.name], f.dtype) for f in self._beside}}

    def __call__(
        self, rooms: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray], rows: np.ndarray, buffers: Buffers
    ) -> None:
        """Finish what was decoded into `rooms`; `rows` are the samples' numbers, which their generators come from."""
        for number, step in enumerate(self._augment):
            for leaf, name in targets(step, self.schema.tree).items():
                augment_rows(step, name, rooms[leaf], self._draw(step.seed, number, rows), buffers)
        for change in self._normalise:
            for leaf, name in targets(change, self.schema.tree).items():
                normalise_into(change, name, rooms[leaf], out[leaf])

    def gathered(
        self,
        fixed: Mapping[str, np.ndarray],
        out: Mapping[str, np.ndarray],
        loose: Mapping[str, Column],
        buffers: Buffers,
    ) -> tuple[dict[str, np.ndarray], dict[str, Column]]:
        """Normalise gathered rows into `out`; columns of open shape, without a room there, get memory of their own."""
        done, rest = dict(fixed), dict(loose)
        for change in self._normalise:
            for leaf, name in targets(change, self.schema.tree).items():
                if leaf in fixed:
                    normalise_into(change, name, fixed[leaf], out[leaf])
                    done[leaf] = out[leaf]
                else:
                    rest[leaf] = normalised(change, name, rest[leaf], buffers)
        return done, rest

    def _draw(self, seed: int, number: int, rows: np.ndarray) -> Draw:
        return lambda row: generator("augment", seed, *self._epoch, number, int(rows[row]))

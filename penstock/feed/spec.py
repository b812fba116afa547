"""What can be said about the elements of a plan before reading them all.

Covers: dtype and shape of every leaf, with open lengths where elements may differ.
Does not cover: how a framework writes that down (tensorflow.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.schema import OBJECT, Field
from penstock.engine.streams.batch import GROUP_NBYTES
from penstock.feed.convert import Streamed
from penstock.plan.length import length
from penstock.plan.rewrite import rewrite
from penstock.plan.steps import Batch, Node, Read, Repeat, Shard, Shuffle, Take, Unbatch


@dataclass(frozen=True)
class Leaf:
    """One leaf of all elements: `dtype` is None for text and bytes."""

    dtype: np.dtype[np.generic] | None
    shape: tuple[int | None, ...]


def leaves_of(dataset: Streamed) -> dict[str, Leaf]:
    """Each column's leaf. Reads one element if functions are involved; that does not use up an epoch."""
    plan = rewrite(dataset.node)
    batch = _batch_of(plan)
    fixed = _one_shape(plan, batch)
    first = _first_length(batch)
    return {f.name: _leaf(f, fixed.get(f.name, fixed[""]), batch is not None, first) for f in dataset.schema}


def made_together(dataset: Streamed) -> bool:
    """Whether elements are batches so small that several are made, and can be handed over, at once."""
    if _batch_of(rewrite(dataset.node)) is None:
        return False
    nbytes = 0
    for field in dataset.schema:
        if not field.fixed:
            return False
        nbytes += math.prod(n or 0 for n in field.shape) * field.dtype.itemsize
    return 2 * nbytes <= GROUP_NBYTES


def endless(node: Node) -> bool:
    """Whether a plan goes on for ever."""
    if isinstance(node.step, Repeat) and node.step.count is None:
        return length(node.input) != 0
    return not isinstance(node.step, (Read, Take)) and len(node.inputs) == 1 and endless(node.input)


def sharded(node: Node) -> bool:
    """Whether a plan is one rank's part already."""
    return isinstance(node.step, Shard) or any(sharded(child) for child in node.inputs)


def _batch_of(node: Node) -> Node | None:
    """The step that made the elements batches."""
    while not isinstance(node.step, (Batch, Unbatch, Read)) and node.inputs:
        node = node.input
    return node if isinstance(node.step, Batch) else None


def _first_length(batch: Node | None) -> int | None:
    """The number of rows in every batch, or None if the last one may have fewer."""
    if batch is None or not isinstance(batch.step, Batch):
        return None
    rows = length(batch.input)
    full = batch.step.drop_last or (rows is not None and rows % batch.step.size == 0)
    return batch.step.size if full else None


def _one_shape(plan: Node, batch: Node | None) -> dict[str, bool]:
    """Per column of the source whether all its rows have one shape; "" stands for columns that functions made."""
    node, mapped = plan, False
    while node.inputs:
        mapped = mapped or not isinstance(node.step, (Batch, Unbatch, Shuffle, Shard, Take, Repeat))
        node = node.input
    known = {f.name: f.fixed for f in node.step.source.schema()} if isinstance(node.step, Read) else {}
    every = all(known.values()) and (batch is None or not isinstance(batch.step, Batch) or batch.step.pad is None)
    return {"": every} if mapped else {"": every, **known}


def _leaf(field: Field, fixed: bool, batched: bool, first: int | None) -> Leaf:
    shape = field.shape if fixed else (None,) * len(field.shape)
    if batched and shape:
        shape = (first, *shape[1:])
    if field.dtype == OBJECT:
        return Leaf(None, shape)
    dtype = np.dtype(np.int64) if field.dtype.kind in "mM" else field.dtype.newbyteorder("=")
    return Leaf(dtype, shape)


def check_batched(dataset: Streamed, what: str) -> None:
    """Models take batches: a leaf without any axis shows that there are none."""
    for field in dataset.schema:
        if not field.shape:
            raise InvalidInput(f"{what} needs batches; column {field.name!r} has single values. Call batch(n) first.")

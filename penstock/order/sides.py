"""Splitting a chain in two: every source below it is split, whatever follows stays.

Covers: `Dataset.split` on a plan, and which steps it may not follow.
Does not cover: which rows (split.py).
"""

from __future__ import annotations

from penstock.core.errors import InvalidInput
from penstock.order.split import Side, split
from penstock.plan.steps import (
    Batch,
    Cache,
    Concatenate,
    Filter,
    Interleave,
    Map,
    MapBatches,
    Node,
    Prefetch,
    Read,
    SampleFrom,
    Shard,
    Shuffle,
    Unbatch,
)  # fmt: skip

_FOLLOWS = (Map, MapBatches, Filter, Batch, Unbatch, Shuffle, Prefetch, Shard, Concatenate, SampleFrom)
"""Steps that do the same to a part of the rows as to all of them."""


def side_of(node: Node, share: float, side: Side, seed: int) -> Node:
    """The plan of one side. `share` is what the side called "val" gets."""
    step = node.step
    if isinstance(step, Read):
        return Node(Read(split(step.source, share, side, seed)))
    if not isinstance(step, _FOLLOWS):
        raise InvalidInput(f"split() cannot follow {_name(node)}: {_why(node)} Call split() before it.")
    return Node(step, tuple(side_of(child, share, side, seed) for child in node.inputs))


def _name(node: Node) -> str:
    return f"{type(node.step).__name__.lower()}()"


def _why(node: Node) -> str:
    if isinstance(node.step, Cache):
        return "both sides would write to one cache."
    if isinstance(node.step, Interleave):
        return "which rows there are is only known when it runs."
    return "rows are split where they are read, and it counts rows."

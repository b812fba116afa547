"""Where a chain is divided among ranks when the user has not said so.

Covers: putting a shard into a plan, below functions, batches and repetitions and above shuffles and sources.
Does not cover: which rank this is (core/world.py), dividing rows and units (engine/).

A rank's batches hold as many rows as the chain says; together the ranks see each sample once per epoch.
"""

from __future__ import annotations

from penstock.plan.steps import Batch, Filter, Map, MapBatches, Node, Prefetch, Repeat, Shard, Unbatch

_OF_A_RANK = (Map, Filter, MapBatches, Batch, Unbatch, Repeat, Prefetch)
"""What each rank does with its own part."""


def divided(node: Node, rank: int, world: int) -> Node:
    """The plan of one rank. A plan that is divided already stays as it is."""
    if has_shard(node):
        return node
    return _divided(node, Shard(rank, world))


def has_shard(node: Node) -> bool:
    """Whether the user has divided the chain, somewhere."""
    return isinstance(node.step, Shard) or any(has_shard(child) for child in node.inputs)


def without_shards(node: Node) -> Node:
    """The plan of a process alone."""
    inputs = tuple(without_shards(child) for child in node.inputs)
    return inputs[0] if isinstance(node.step, Shard) else Node(node.step, inputs)


def _divided(node: Node, shard: Shard) -> Node:
    # Batches are of one rank: dividing above them would deal out whole batches, and their number is often small.
    # Functions run on what a rank has read: dividing above them would make every rank read and compute everything.
    if isinstance(node.step, _OF_A_RANK):
        return Node(node.step, (_divided(node.input, shard),))
    return Node(shard, (node,))

"""Rewrites of a plan that change its cost and never its elements.

Covers: moving shuffles and shards towards the source, dropping hints.
Does not cover: fusing maps into one job (engine/build.py does that while building).

Rules, applied until none fits, in this order:
1. A prefetch is dropped: the engine always reads ahead.
2. A shuffle sinks below maps and filters of elements, so that references are shuffled and not decoded images.
   It stays above map_batches and cache (blocks and cached rows would differ), batches, and combinations.
3. A shard sinks to the source or the cache nearest to it, so that each rank reads only its part. It stays above
   batches and combinations, where "every n-th element" is what was asked.
"""

from __future__ import annotations

from penstock.plan.steps import Batch, Cache, Filter, Map, Node, Prefetch, Read, Shard, Shuffle, Step, Unbatch


def rewrite(node: Node) -> Node:
    """The plan as it will run."""
    inputs = tuple(rewrite(child) for child in node.inputs)
    if isinstance(node.step, Prefetch):
        return inputs[0]
    if isinstance(node.step, (Shuffle, Shard)):
        return _sink(node.step, inputs[0])
    return Node(node.step, inputs)


def _sink(step: Step, below: Node) -> Node:
    if _passes(step, below):
        return Node(below.step, (_sink(step, below.input),))
    return Node(step, (below,))


def _passes(step: Step, below: Node) -> bool:
    """Whether `step` may swap with the step below it."""
    if isinstance(below.step, (Map, Filter)):
        return isinstance(step, Shuffle) or (not batched(below.input) and _reaches_source(below.input))
    return isinstance(step, Shard) and isinstance(below.step, Shuffle) and _reaches_source(below)


def _reaches_source(node: Node) -> bool:
    """Whether only maps, filters and shuffles of samples lie between here and a source, or a cache, which is one."""
    while isinstance(node.step, (Map, Filter, Shuffle)):
        node = node.input
    return isinstance(node.step, (Cache, Read))


def batched(node: Node) -> bool:
    """Whether the elements at this point of a plan are batches."""
    while not isinstance(node.step, (Batch, Unbatch, Read)):
        if not node.inputs:
            return False
        node = node.input
    return isinstance(node.step, Batch)

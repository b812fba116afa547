"""Rewrites of a plan that change its cost and never its elements.

Covers: moving shuffles and shards towards the source, dropping hints; a plan for looking at a few elements.
Does not cover: fusing maps into one job (engine/build.py does that while building).

Rules, applied until none fits, in this order:
1. A prefetch is dropped: the engine always reads ahead.
2. A shuffle sinks below maps and filters of elements, so that references are shuffled and not decoded images.
   It stays above map_batches and cache (blocks and cached rows would differ), batches, and combinations.
3. A shard sinks to the source or the cache nearest to it, so that each rank reads only its part. It stays above
   batches and combinations, where "every n-th element" is what was asked.
4. Maps and filters of samples sink below a repeat: they are fused into reading, and a position in the middle of a
   round counts rows of the source.
5. Normalising a batch sinks below the batch, where it costs next to nothing; not where padding would be changed too.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.plan.descend import descend
from penstock.plan.prepare import Normalise
from penstock.plan.steps import Batch, Cache, Filter, Map, Node, Prefetch, Read, Repeat, Shard, Shuffle, Step, Unbatch


def for_preview(node: Node) -> Node:
    """The plan for a few elements: its shuffles neither gather a window nor keep rows on disk."""
    step = node.step
    if isinstance(step, Shuffle) and step.window is None:
        step = replace(step, window=1, exact=False, folder=None)
    return Node(step, tuple(for_preview(child) for child in node.inputs))


def rewrite(node: Node) -> Node:
    """The plan as it will run."""
    inputs = tuple(rewrite(child) for child in node.inputs)
    if isinstance(node.step, Prefetch):
        return inputs[0]
    if isinstance(node.step, (Shuffle, Shard)):
        return _towards_source(node.step, inputs[0])
    if isinstance(node.step, (Map, Filter)) and isinstance(inputs[0].step, Repeat) and not batched(inputs[0]):
        return Node(inputs[0].step, (rewrite(Node(node.step, inputs[0].inputs)),))
    if isinstance(node.step, Normalise) and isinstance(inputs[0].step, Batch) and inputs[0].step.pad is None:
        return Node(inputs[0].step, (rewrite(Node(node.step, inputs[0].inputs)),))
    return Node(node.step, inputs)


def without_stores(node: Node) -> Node:
    """The plan with shuffles by windows only, where one look at its elements will do."""
    step = node.step
    if isinstance(step, Shuffle) and step.window is None:
        step = Shuffle(step.seed, window="22MB")
    return Node(step, tuple(without_stores(child) for child in node.inputs))


def _towards_source(step: Step, below: Node) -> Node:
    if _passes(step, below):
        return Node(below.step, (_towards_source(step, below.input),))
    return Node(step, (below,))


def _passes(step: Step, below: Node) -> bool:
    """Whether `step` may swap with the step below it."""
    if isinstance(below.step, (Map, Filter)):
        return isinstance(step, Shuffle) or (not batched(below.input) and _reaches_source(below.input))
    return isinstance(step, Shard) and isinstance(below.step, Shuffle) and _reaches_source(below)


def _reaches_source(node: Node) -> bool:
    """Whether only maps, filters and shuffles of samples lie between here and a source, or a cache, which is one."""
    return isinstance(descend(node, (Map, Filter, Shuffle))[1].step, (Cache, Read))


def batched(node: Node) -> bool:
    """Whether the elements at this point of a plan are batches."""
    while not isinstance(node.step, (Batch, Unbatch, Read)):
        if not node.inputs:
            return False
        node = node.input
    return isinstance(node.step, Batch)

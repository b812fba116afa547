"""The part of a chain that belongs to one source: finding it, and the order of its rows.

Covers: the segment that ends at a node, all segments of a plan, the order of a source of single rows.
Does not cover: running it (build.py), how units are read (arrange.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.core.source import RowSource, Source
from penstock.engine.cache.source import cached_source
from penstock.engine.prepare.finish import can_finish
from penstock.engine.streams.rows import RowOrder
from penstock.order.permutation import places_of_rows
from penstock.order.stripe import Stripe
from penstock.plan import steps
from penstock.plan.descend import descend
from penstock.plan.steps import Node

Epoch = tuple[int, ...]

TRANSFORMS = (steps.Map, steps.MapBatches, steps.Filter)


@dataclass(frozen=True)
class Segment:
    """What is read, in which order, and what is done to it."""

    source: Source
    shuffle: steps.Shuffle | None
    shard: steps.Shard | None
    before: tuple[steps.Step, ...]
    after: tuple[steps.Step, ...]


def segment_of(node: Node, source_at: Callable[[Node], Source | None]) -> Segment | None:
    """The segment that ends at `node`, or None if it does not lead straight to a source."""
    passed, below = descend(node, (*TRANSFORMS, steps.Shuffle, steps.Shard))
    shuffle: steps.Shuffle | None = None
    shard: steps.Shard | None = None
    before: list[steps.Step] = []
    after: list[steps.Step] = []
    for step in reversed(passed):
        if isinstance(step, steps.Shard):
            if shard is not None:
                return None
            shard = step
        elif isinstance(step, steps.Shuffle):
            if before:
                return None  # a second shuffle, with work in between: that one is a window of its own
            shuffle = shuffle or step
        else:
            (before if shuffle is not None else after).insert(0, step)
    source = source_at(below)
    if source is None:
        return None
    if shuffle is None:
        before, after = after, []
    return Segment(source, shuffle, shard, tuple(before), tuple(after))


def segments_of(node: Node) -> Iterator[Segment]:
    """All segments of a plan, in the order of its inputs."""
    segment = segment_of(node, source_of)
    if segment is not None:
        yield segment
        return
    for child in node.inputs:
        yield from segments_of(child)


def source_of(node: Node) -> Source | None:
    """The source at the head of a chain; a cache is shown as one, and not opened."""
    if isinstance(node.step, steps.Cache):
        return cached_source(node, source_of, None)
    return node.step.source if isinstance(node.step, steps.Read) else None


def decodes_into_batches(segment: Segment) -> bool:
    """Whether rows can be decoded straight into batches: no function of the user in between, no row dropped."""
    return (
        isinstance(segment.source, RowSource)
        and can_finish(segment.before + segment.after)
        and segment.source.on_error.mode == "raise"
        and segment.source.schema().fixed
    )


def row_order(source: RowSource, shuffle: steps.Shuffle | None, stripe: Stripe, epoch: Epoch) -> RowOrder:
    """Rows as stored, or in an exact random order that costs no memory."""
    total = source.num_rows()
    return RowOrder(places_of_rows(total, None if shuffle is None else shuffle.seed, epoch), total, stripe)

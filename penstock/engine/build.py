"""Plan to streams: every step becomes running code here, and nowhere else.

Covers: choosing the stream of each step, fusing maps into reading, decoding straight into batches.
Does not cover: the streams themselves, the order of rewrites (plan/rewrite.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.sizes import parse_size
from penstock.core.source import RowSource, Source, UnitSource
from penstock.engine import combine, gather, reshape
from penstock.engine.batch import Batches
from penstock.engine.cache import cached_source
from penstock.engine.legs import LegRows, Legs
from penstock.engine.mix import Mix, Width
from penstock.engine.nested import Nested, open_with
from penstock.engine.rowwise import RowBatches, RowBlocks, RowOrder, rows_per_part
from penstock.engine.stream import Context, State, Stream
from penstock.engine.transform import Fused
from penstock.engine.units import UnitBlocks, UnitOrder
from penstock.order.permutation import Permutation, key_of
from penstock.order.stripe import Stripe
from penstock.plan import steps
from penstock.plan.rewrite import rewrite
from penstock.plan.steps import Node

Epoch = tuple[int, ...]

_MAPPED_ROWS = 32
"""Rows per job where a user's function runs right after reading: it may make a picture of a path."""

_CHUNK_ROWS = 64
"""Samples per job where a user's function runs on samples that are there already."""

_SHUFFLED_CYCLE = 8
"""Units of many blocks that are read in turns when shuffled, so that a window holds rows from all over."""

_AUTO_CYCLE = 4
"""Datasets that interleave opens at a time when it may choose: a constant, since it decides the order of elements."""

_UNITS_PER_RANK = 4
"""With fewer units than this for each rank, ranks would get very different shares: they divide rows instead."""

_TRANSFORMS = (steps.Map, steps.MapBatches, steps.Filter)


@dataclass(frozen=True)
class Segment:
    """The part of a chain that is tied to one source: what is read, in which order, and what is done to it."""

    source: Source
    shuffle: steps.Shuffle | None
    shard: steps.Shard | None
    before: tuple[steps.Step, ...]
    after: tuple[steps.Step, ...]


def segment_of(node: Node, source_at: Callable[[Node], Source | None]) -> Segment | None:
    """The segment that ends at `node`, or None if it does not lead straight to a source."""
    shuffle: steps.Shuffle | None = None
    shard: steps.Shard | None = None
    before: list[steps.Step] = []
    after: list[steps.Step] = []
    while isinstance(node.step, (*_TRANSFORMS, steps.Shuffle, steps.Shard)):
        step = node.step
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
        node = node.input
    source = source_at(node)
    if source is None:
        return None
    if shuffle is None:
        before, after = after, []
    return Segment(source, shuffle, shard, tuple(before), tuple(after))


class Builder:
    """Builds streams for one run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cached: dict[int, tuple[Node, Source]] = {}

    def build(self, node: Node, state: State, epoch: Epoch) -> Stream:
        """The stream of a rewritten plan node, standing at `state`."""
        segment = segment_of(node, self.source_at)
        if segment is not None:
            return self._segment(segment, state, epoch)
        step = node.step
        if isinstance(step, steps.Batch):
            return self._batch(node, step, state, epoch)
        if isinstance(step, _TRANSFORMS):
            return self._transforms(node, state, epoch)
        if isinstance(step, (steps.Concatenate, steps.Zip, steps.Mix)):
            return self._combination(node, state, epoch)
        if isinstance(step, steps.Repeat):
            # Reading ahead of its turn may overdraw by a block: not where memory is short.
            roomy = self._context.most_nbytes >= gather.ROOMY_NBYTES
            return reshape.Repeat(lambda s, n: self.build(node.input, s, (*epoch, n)), step.count, state, ahead=roomy)
        if isinstance(step, steps.Interleave):
            return self._nested(node, step, state, epoch)
        return self._simple(node, state, epoch)

    def source_at(self, node: Node) -> Source | None:
        """The source that a node stands for: what is read, or what a cache keeps."""
        if isinstance(node.step, steps.Cache):
            if id(node) not in self._cached:
                self._cached[id(node)] = (node, cached_source(node, self.source_at, self._context))
            return self._cached[id(node)][1]
        return node.step.source if isinstance(node.step, steps.Read) else None

    def _simple(self, node: Node, state: State, epoch: Epoch) -> Stream:
        step = node.step
        inner = self.build(node.input, None if state is None else _inner(step, state), epoch)
        if isinstance(step, steps.Take):
            return reshape.Take(inner, step.count, state)
        if isinstance(step, steps.Skip):
            return reshape.Skip(inner, step.count, state)
        if isinstance(step, steps.Shard):
            return reshape.Stride(inner, step.index, step.world, state)
        if isinstance(step, steps.Unbatch):
            return reshape.Unbatch(self._context, inner)
        if isinstance(step, steps.Shuffle):
            return Mix(self._context, inner, width_of(step), ("mix", step.seed, *epoch), state)
        raise InvalidInput(f"There is no way to run {step.describe()}.")

    def _batch(self, node: Node, step: steps.Batch, state: State, epoch: Epoch) -> Stream:
        segment = segment_of(node.input, self.source_at)
        if segment is not None and decodes_into_batches(segment):
            return self._row_batches(segment, step, state, epoch)
        inner = self.build(node.input, None if state is None else state["in"], epoch)
        return Batches(self._context, inner, step, state)

    def _row_batches(self, segment: Segment, step: steps.Batch, state: State, epoch: Epoch) -> Stream:
        source, shuffle, shard = segment.source, segment.shuffle, segment.shard
        assert isinstance(source, RowSource)
        sized: dict[str, Any] = {"size": step.size, "drop_last": step.drop_last}
        if shard is None:
            order = row_order(source, shuffle, Stripe(), epoch)
            return RowBatches(self._context, source, order, at=0 if state is None else state, **sized)
        legs = LegRows(lambda stripe: row_order(source, shuffle, stripe, epoch), shard.index, shard.world, state)
        return RowBatches(self._context, source, legs, at=0, **sized)

    def _transforms(self, node: Node, state: State, epoch: Epoch) -> Stream:
        found: list[steps.Step] = []
        while isinstance(node.step, _TRANSFORMS):
            found.insert(0, node.step)
            node = node.input
        inner = self.build(node, None if state is None else state["in"]["in"], epoch)
        context = replace(self._context, epoch=epoch)
        return reshape.MapElements(context, inner, Fused(tuple(found)), chunk=_chunk(found), state=state)

    def _combination(self, node: Node, state: State, epoch: Epoch) -> Stream:
        step = node.step
        if isinstance(step, steps.Concatenate):
            return combine.Concatenate([self._later(child, epoch) for child in node.inputs], state)
        saved = [None] * len(node.inputs) if state is None else (state if isinstance(step, steps.Zip) else state["in"])
        inners = [
            self.build(child, None if s is None else s["in"], epoch)
            for child, s in zip(node.inputs, saved, strict=True)
        ]
        if isinstance(step, steps.Zip):
            return combine.Zip(self._context, inners, state)
        assert isinstance(step, steps.Mix)
        return combine.Weighted(self._context, inners, step.weights, ("weighted", step.seed, *epoch), state)

    def _later(self, child: Node, epoch: Epoch) -> Callable[[State], Stream]:
        return lambda state: self.build(child, state, epoch)

    def _nested(self, node: Node, step: steps.Interleave, state: State, epoch: Epoch) -> Stream:
        def open_one(element: Any, saved: State) -> Stream:
            made = open_with(step.function, element)
            if not isinstance(getattr(made, "node", None), Node):
                raise InvalidInput(f"interleave: {step.describe()} must return a dataset, not {type(made).__name__}.")
            return self.build(rewrite(made.node), saved, epoch)

        def again(saved: State) -> Stream:
            return self.build(node.input, saved, epoch)

        inner = again(None if state is None else state["in"]["in"])
        cycle = _AUTO_CYCLE if step.cycle == steps.AUTOTUNE else step.cycle
        if state is not None:
            cycle = state["cycle"]
        return Nested(inner, open_one, cycle=cycle, block=step.block, state=state, again=again)

    def _segment(self, segment: Segment, state: State, epoch: Epoch) -> Stream:
        def build(stripe: Stripe, thin: bool, saved: State) -> Stream:
            if isinstance(segment.source, RowSource):
                return self._rows(segment, segment.source, stripe, epoch, saved)
            return self._units(segment, segment.source, stripe, thin, epoch, saved)

        if segment.shard is None:
            return build(Stripe(), False, state)
        return Legs(build, _thins(segment.source), segment.shard.index, segment.shard.world, state)

    def _rows(self, segment: Segment, source: RowSource, stripe: Stripe, epoch: Epoch, state: State) -> Stream:
        order = row_order(source, segment.shuffle, stripe, epoch)
        fused = Fused(segment.before + segment.after)
        context = replace(self._context, epoch=epoch)
        chunk = rows_per_part(source.schema(), _MAPPED_ROWS if fused.steps else 2 * _CHUNK_ROWS)
        return RowBlocks(context, source, order, chunk=chunk, fused=fused, state=state)

    def _units(
        self, segment: Segment, source: UnitSource, stripe: Stripe, thin: bool, epoch: Epoch, state: State
    ) -> Stream:
        after = segment.after
        mapped = None if state is None or not after else state
        mixed = mapped["in"]["in"] if mapped is not None else (None if after else state)
        read_state = mixed if segment.shuffle is None else (None if mixed is None else mixed["in"])
        order = unit_order(source, segment.shuffle, stripe, thin, epoch)
        context = replace(self._context, epoch=epoch)
        cycle = _SHUFFLED_CYCLE if segment.shuffle is not None else 1
        stream: Stream = UnitBlocks(context, source, order, cycle=cycle, fused=Fused(segment.before), state=read_state)
        if segment.shuffle is not None:
            gather.prepare(context.most_nbytes)
            key: tuple[int | str, ...] = ("mix", segment.shuffle.seed, *epoch, stripe.rank, stripe.world, stripe.start)
            stream = Mix(context, stream, width_of(segment.shuffle), key, mixed)
        if after:
            stream = reshape.MapElements(context, stream, Fused(after), chunk=_chunk(list(after)), state=mapped)
        return stream


def _inner(step: steps.Step, state: State) -> State:
    """Where a simple step keeps the state of its input."""
    return state if isinstance(step, steps.Unbatch) else state["in"]


def decodes_into_batches(segment: Segment) -> bool:
    """Whether rows can be decoded straight into batches: nothing in between may change, drop or add one."""
    return (
        isinstance(segment.source, RowSource)
        and not segment.before
        and not segment.after
        and segment.source.on_error.mode == "raise"
        and segment.source.schema().fixed
    )


def _chunk(transforms: list[steps.Step]) -> int:
    """Rows per job: what a block function asks for, or few enough to share among workers."""
    asked = [s.rows for s in transforms if isinstance(s, steps.MapBatches) and s.rows is not None]
    if asked:
        return asked[0]
    return 1 << 40 if all(isinstance(s, steps.MapBatches) for s in transforms) else _CHUNK_ROWS


def _thins(source: Source) -> Callable[[int], bool]:
    def thin(world: int) -> bool:
        return isinstance(source, UnitSource) and source.num_units() < _UNITS_PER_RANK * world and world > 1

    return thin


def width_of(shuffle: steps.Shuffle) -> Width:
    """A window in rows (a number) or bytes (a size)."""
    if shuffle.window is None:
        return Width()
    if isinstance(shuffle.window, int):
        return Width(rows=shuffle.window, nbytes=1 << 60)
    return Width(nbytes=parse_size(shuffle.window))


def row_order(source: RowSource, shuffle: steps.Shuffle | None, stripe: Stripe, epoch: Epoch) -> RowOrder:
    """Rows as stored, or in an exact random order that costs no memory."""
    total = source.num_rows()
    if shuffle is None:
        return RowOrder(lambda places: places, total, stripe)
    return RowOrder(Permutation(total, key_of("rows", shuffle.seed, *epoch)).at, total, stripe)


def unit_order(
    source: UnitSource, shuffle: steps.Shuffle | None, stripe: Stripe, thin: bool, epoch: Epoch
) -> UnitOrder:
    """Units as stored or permuted; shared out, or read by every rank that then keeps every n-th row."""
    total = source.num_units()
    keep = (stripe.rank, stripe.world) if thin else (0, 1)
    cut = replace(stripe, rank=0, world=1) if thin else stripe
    if shuffle is None:
        return UnitOrder(lambda place: place, total, cut, keep)
    permutation = Permutation(total, key_of("units", shuffle.seed, *epoch))

    def unit_at(place: int) -> int:
        return int(permutation.at(np.array([place]))[0])

    return UnitOrder(unit_at, total, cut, keep)

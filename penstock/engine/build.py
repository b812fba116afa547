"""Plan to streams: every step becomes running code here, and nowhere else.

Covers: choosing the stream of each step, fusing maps into reading, decoding straight into batches.
Does not cover: the streams themselves, the order of rewrites (plan/rewrite.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any

from penstock.core.errors import DiskTooSmall, InvalidInput
from penstock.core.source import RowSource, Source, UnitSource
from penstock.engine.arrange import SHUFFLED_CYCLE, arrange, num_units, width_of
from penstock.engine.cache.source import cached_source
from penstock.engine.mixing import quality_of_units, warn
from penstock.engine.prepare.finish import Finish
from penstock.engine.rowstore.choose import Wanted, store_wanted
from penstock.engine.rowstore.store import stored_rows
from penstock.engine.segment import TRANSFORMS, Segment, decodes_into_batches, row_order, segment_of
from penstock.engine.streams import combine, reshape
from penstock.engine.streams.batch import Batches
from penstock.engine.streams.interleave import Nested, open_with
from penstock.engine.streams.rank_stretches import RankRows, RankStretches
from penstock.engine.streams.rows import RowBatches, RowBlocks, rows_per_part
from penstock.engine.streams.stream import Context, State, Stream
from penstock.engine.streams.transform import Fused
from penstock.engine.streams.units import UnitBlocks
from penstock.engine.streams.window_shuffle import WindowShuffle
from penstock.order.stripe import Stripe
from penstock.plan import steps
from penstock.plan.descend import descend
from penstock.plan.prepare import Augment, Normalise, Prepare
from penstock.plan.rewrite import rewrite
from penstock.plan.steps import Node

Epoch = tuple[int, ...]

_MAPPED_ROWS = 32
"""Rows per job where a user's function runs right after reading: it may make a picture of a path."""

_CHUNK_ROWS = 64
"""Samples per job where a user's function runs on samples that are there already."""

_AUTO_CYCLE = 4
"""Datasets that interleave opens at a time when it may choose: a constant, since it decides the order of elements."""

_UNITS_PER_RANK = 4
"""With fewer units than this for each rank, ranks would get very different shares: they divide rows instead."""

_AHEAD_NBYTES = 1_000_000_000
"""A data budget from which on the next pass of `repeat` begins to read before this one ends."""


class Builder:
    """Builds streams for one run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cached: dict[int, tuple[Node, Source]] = {}
        self._stored: dict[int, UnitSource] = {}

    def build(self, node: Node, state: State, epoch: Epoch) -> Stream:
        """The stream of a rewritten plan node, standing at `state`."""
        segment = segment_of(node, self.source_at)
        if segment is not None:
            return self._segment(segment, state, epoch)
        step = node.step
        if isinstance(step, steps.Batch):
            return self._batch(node, step, state, epoch)
        if isinstance(step, TRANSFORMS):
            return self._transforms(node, state, epoch)
        if isinstance(step, (steps.Concatenate, steps.Zip, steps.SampleFrom)):
            return self._combination(node, state, epoch)
        if isinstance(step, steps.Repeat):
            return self._repeat(node, step, state, epoch)
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
            return reshape.TakeStream(inner, step.count, state)
        if isinstance(step, steps.Skip):
            return reshape.SkipStream(inner, step.count, state)
        if isinstance(step, steps.Shard):
            return reshape.Stride(inner, step.index, step.world, state)
        if isinstance(step, steps.Unbatch):
            return reshape.UnbatchStream(self._context, inner)
        if isinstance(step, steps.Shuffle) and step.exact:
            raise InvalidInput(
                f"shuffle: exact=True cannot keep what comes out of {node.input.step.describe()}. Put it right after "
                "reading and the maps and filters that belong to it, or shuffle by windows."
            )
        if isinstance(step, steps.Shuffle):
            return WindowShuffle(self._context, inner, width_of(step), ("mix", step.seed, *epoch), state)
        raise InvalidInput(f"There is no way to run {step.describe()}.")

    def _batch(self, node: Node, step: steps.Batch, state: State, epoch: Epoch) -> Stream:
        segment = segment_of(node.input, self.source_at)
        if segment is not None and decodes_into_batches(segment):
            return self._row_batches(segment, step, state, epoch)
        last = node.input.step if isinstance(node.input.step, Normalise) and not step.pad else None
        below = node.input if last is None else node.input.input
        inner = self.build(below, None if state is None else state["in"], epoch)
        return Batches(self._context, inner, step, state, last)

    def _row_batches(self, segment: Segment, step: steps.Batch, state: State, epoch: Epoch) -> Stream:
        source, shuffle, shard = segment.source, segment.shuffle, segment.shard
        assert isinstance(source, RowSource)
        known = segment.before + segment.after
        finish = Finish(known, source.schema(), epoch) if known else None
        sized: dict[str, Any] = {"size": step.size, "drop_last": step.drop_last, "finish": finish}
        if shard is None:
            order = row_order(source, shuffle, Stripe(), epoch)
            return RowBatches(self._context, source, order, at=0 if state is None else state, **sized)
        stretches = RankRows(lambda stripe: row_order(source, shuffle, stripe, epoch), shard.index, shard.world, state)
        return RowBatches(self._context, source, stretches, at=0, **sized)

    def _transforms(self, node: Node, state: State, epoch: Epoch) -> Stream:
        found, below = descend(node, TRANSFORMS)
        inner = self.build(below, None if state is None else state["in"]["in"], epoch)
        context = replace(self._context, epoch=epoch)
        return reshape.MapElements(context, inner, Fused(tuple(found)), chunk=_chunk(found), state=state)

    def _combination(self, node: Node, state: State, epoch: Epoch) -> Stream:
        step = node.step
        if isinstance(step, steps.Concatenate):
            return combine.ConcatenateStream([self._later(child, epoch) for child in node.inputs], state)
        saved = [None] * len(node.inputs) if state is None else (state if isinstance(step, steps.Zip) else state["in"])
        inners = [
            self.build(child, None if s is None else s["in"], epoch)
            for child, s in zip(node.inputs, saved, strict=True)
        ]
        if isinstance(step, steps.Zip):
            return combine.ZipStream(self._context, inners, state)
        assert isinstance(step, steps.SampleFrom)
        return combine.Weighted(self._context, inners, step.weights, ("weighted", step.seed, *epoch), state)

    def _later(self, child: Node, epoch: Epoch) -> Callable[[State], Stream]:
        return lambda state: self.build(child, state, epoch)

    def _repeat(self, node: Node, step: steps.Repeat, state: State, epoch: Epoch) -> Stream:
        def again(saved: State, number: int) -> Stream:
            return self.build(node.input, saved, (*epoch, number))

        # Reading ahead of its turn may overdraw by a block: not where memory is short.
        roomy = self._context.most_nbytes >= _AHEAD_NBYTES
        return reshape.RepeatStream(again, step.count, state, ahead=roomy, sharded=self._context.sharded)

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
        segment = self._with_store(segment)

        def build(stripe: Stripe, thin: bool, saved: State) -> Stream:
            if isinstance(segment.source, RowSource):
                return self._rows(segment, segment.source, stripe, epoch, saved)
            return self._units(segment, segment.source, stripe, thin, epoch, saved)

        if segment.shard is None:
            return build(Stripe(), False, state)
        return RankStretches(build, _thins(segment), segment.shard.index, segment.shard.world, state)

    def _with_store(self, segment: Segment) -> Segment:
        """The segment over a row store of its source, where its shuffle wants one."""
        source, shuffle = segment.source, segment.shuffle
        if shuffle is None or isinstance(source, RowSource):
            return segment
        if id(source) not in self._stored:
            wanted = store_wanted(source, shuffle)
            self._stored[id(source)] = source if wanted is None else self._store(source, shuffle, wanted, segment)
        return replace(segment, source=self._stored[id(source)])

    def _store(self, source: UnitSource, shuffle: steps.Shuffle, wanted: Wanted, segment: Segment) -> UnitSource:
        try:
            return stored_rows(self._context, source, wanted.folder, wanted.limit, wanted.share)
        except DiskTooSmall as error:
            if wanted.must or segment.shard is not None:  # ranks that do not agree would lose rows
                raise
            self._context.events.emit("rowstore.refused", source.label, reason=str(error))
            warn(source, quality_of_units(source, shuffle, rows=5_000))
            return source

    def _rows(self, segment: Segment, source: RowSource, stripe: Stripe, epoch: Epoch, state: State) -> Stream:
        order = row_order(source, segment.shuffle, stripe, epoch)
        fused = Fused(segment.before + segment.after)
        context = replace(self._context, epoch=epoch)
        chunk = rows_per_part(source.schema(), _MAPPED_ROWS if fused.steps else 2 * _CHUNK_ROWS)
        return RowBlocks(context, source, order, chunk=chunk, fused=fused, state=state)

    def _units(
        self, segment: Segment, source: UnitSource, stripe: Stripe, thin: bool, epoch: Epoch, state: State
    ) -> Stream:
        segment = _augmented_early(segment)
        after = segment.after
        mapped = None if state is None or not after else state
        mixed = mapped["in"]["in"] if mapped is not None else (None if after else state)
        read_state = mixed if segment.shuffle is None else (None if mixed is None else mixed["in"])
        arranged = arrange(source, segment.shuffle, stripe, thin, epoch)
        context = replace(self._context, epoch=epoch)
        cycle = SHUFFLED_CYCLE if segment.shuffle is not None else 1
        stream: Stream = UnitBlocks(
            context, arranged.source, arranged.order, cycle=cycle, fused=Fused(segment.before), state=read_state
        )
        if segment.shuffle is not None and arranged.width is not None:
            key: tuple[int | str, ...] = ("mix", segment.shuffle.seed, *epoch, stripe.rank, stripe.world, stripe.start)
            stream = WindowShuffle(context, stream, arranged.width, key, mixed)
        if after:
            stream = reshape.MapElements(context, stream, Fused(after), chunk=_chunk(list(after)), state=mapped)
        return stream


def _inner(step: steps.Step, state: State) -> State:
    """Where a simple step keeps the state of its input."""
    return state if isinstance(step, steps.Unbatch) else state["in"]


def _augmented_early(segment: Segment) -> Segment:
    """The segment with pictures augmented as they are read, where their place in the data is still known."""
    first = list(takewhile(lambda step: isinstance(step, Prepare), segment.after))
    while first and not isinstance(first[-1], Augment):
        first.pop()
    if segment.shuffle is None or not first:
        return segment
    return replace(segment, before=segment.before + tuple(first), after=segment.after[len(first) :])


def _chunk(transforms: list[steps.Step]) -> int:
    """Rows per job: what a block function asks for, or few enough to share among workers."""
    asked = [s.rows for s in transforms if isinstance(s, steps.MapBatches) and s.rows is not None]
    if asked:
        return asked[0]
    return 1 << 40 if all(isinstance(s, steps.MapBatches) for s in transforms) else _CHUNK_ROWS


def _thins(segment: Segment) -> Callable[[int], bool]:
    source = segment.source

    def thin(world: int) -> bool:
        few = isinstance(source, UnitSource) and num_units(source, segment.shuffle) < _UNITS_PER_RANK * world
        return few and world > 1

    return thin

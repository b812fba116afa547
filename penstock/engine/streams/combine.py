"""Several streams as one: one after the other, side by side, or mixed by weight.

Covers: concatenate, zip and weighted interleave with their states.
Does not cover: datasets opened per element (interleave.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.core.block import Block, Column
from penstock.core.errors import SchemaChanged
from penstock.core.tree import Tree, names, unflatten
from penstock.engine.buffers.leased_rows import BatchList, Elements, Held, Window, joined
from penstock.engine.streams.batch import ElementCutter
from penstock.engine.streams.stream import Context, Piece, State, Stream
from penstock.order.permutation import generator

_CHUNK = 512
"""Elements whose origin is drawn at a time."""


class ConcatenateStream(Stream):
    """All elements of the first stream, then those of the second, ..."""

    def __init__(self, builds: Sequence[Callable[[State], Stream]], state: State) -> None:
        self._builds = builds
        self._index = 0 if state is None else state["input"]
        self._inner = builds[self._index](None if state is None else state["in"])

    def pull(self) -> Piece | None:
        while True:
            piece = self._inner.pull()
            if piece is not None:
                return Piece(piece.elements, {"in": piece.after, "input": self._index})
            if self._index + 1 >= len(self._builds):
                return None
            self._inner.close()
            self._index += 1
            self._inner = self._builds[self._index](None)

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()


class ZipStream(Stream):
    """Element i of every stream as one element, a tuple of theirs."""

    def __init__(self, context: Context, inners: Sequence[Stream], state: State) -> None:
        self._context = context
        states = [None] * len(inners) if state is None else state
        self._cuts = [ElementCutter(inner, s) for inner, s in zip(inners, states, strict=True)]

    def pull(self) -> Piece | None:
        rows = min(cut.fill(1) for cut in self._cuts)
        if not rows:
            return None
        taken = [cut.take(rows)[0] for cut in self._cuts]
        return Piece(self._side_by_side(taken), [cut.state() for cut in self._cuts])

    def ready(self) -> bool:
        return all(cut.ready() for cut in self._cuts)

    def close(self) -> None:
        for cut in self._cuts:
            cut.close()

    def _side_by_side(self, taken: Sequence[Elements]) -> Elements:
        if all(isinstance(t, BatchList) for t in taken):
            lists = [t.batches for t in taken if isinstance(t, BatchList)]
            return BatchList([_paired(batches) for batches in zip(*lists, strict=True)], [t.hold for t in taken])
        parts = [joined(t, self._context.budget) for t in taken]
        return Held(_paired([part.block() for part in parts]), [part.hold for part in parts])


def _paired(blocks: Sequence[Block]) -> Block:
    columns: dict[str, Column] = {}
    trees: list[Tree] = []
    for index, block in enumerate(blocks):
        renamed = {name: f"{index}.{name}" for name in names(block.tree)}
        trees.append(unflatten(block.tree, renamed.__getitem__))
        columns.update({renamed[name]: block.columns[name] for name in renamed})
    rows = {block.nrows for block in blocks}
    if len(rows) > 1:
        raise SchemaChanged(f"zip: batches of {sorted(rows)} rows do not go together. Zip before batching.")
    return Block(columns, tuple(trees), blocks[0].origin)


class Weighted(Stream):
    """Each element comes from a stream drawn at random by weight; ends when all streams have ended."""

    def __init__(
        self,
        context: Context,
        inners: Sequence[Stream],
        weights: Sequence[float],
        key: tuple[int | str, ...],
        state: State,
    ) -> None:
        self._context = context
        states = [None] * len(inners) if state is None else state["in"]
        self._cuts = [ElementCutter(inner, s) for inner, s in zip(inners, states, strict=True)]
        self._weights, self._key = np.asarray(weights, dtype=np.float64), key
        self._chunk = 0 if state is None else state["chunk"]
        self._alive = np.ones(len(inners), dtype=bool)
        if state is not None:
            self._alive = np.array(state["alive"], dtype=bool)

    def pull(self) -> Piece | None:
        while self._alive.any():
            picked = self._draw()
            if len(picked):
                elements = self._merged(picked)
                after = {
                    "in": [cut.state() for cut in self._cuts],
                    "chunk": self._chunk,
                    "alive": [bool(a) for a in self._alive],
                }
                return Piece(elements, after)
        return None

    def ready(self) -> bool:
        return all(cut.ready() for cut, alive in zip(self._cuts, self._alive, strict=True) if alive)

    def close(self) -> None:
        for cut in self._cuts:
            cut.close()

    def _draw(self) -> np.ndarray:
        """Which stream each of the next elements comes from, cut where one of them ends."""
        weights = np.where(self._alive, self._weights, 0)
        rng = generator(*self._key, self._chunk)
        self._chunk += 1
        picked = rng.choice(len(weights), size=_CHUNK, p=weights / weights.sum())
        have = [cut.fill(int((picked == index).sum())) for index, cut in enumerate(self._cuts)]
        for index, count in enumerate(have):
            places = np.flatnonzero(picked == index)
            if count < len(places):
                picked = picked[: places[count]]
        for index, count in enumerate(have):
            # A stream has ended when all it had left is in this chunk and the chunk was cut for want of more.
            if (
                len(picked) < _CHUNK
                and count == (picked == index).sum()
                and not self._cuts[index].fill(count + 1) > count
            ):
                self._alive[index] = False
        return picked

    def _merged(self, picked: np.ndarray) -> Elements:
        taken = [cut.take(int((picked == i).sum())) for i, cut in enumerate(self._cuts)]
        parts = [t for group in taken for t in group]
        # Elements stand grouped by stream; element k of the output is the next one of its stream.
        order = np.empty(len(picked), dtype=np.int64)
        order[np.argsort(picked, kind="stable")] = np.arange(len(picked))
        if all(isinstance(p, BatchList) for p in parts):
            batches = [b for p in parts if isinstance(p, BatchList) for b in p.batches]
            return BatchList([batches[i] for i in order], [p.hold for p in parts])
        held = [joined(p, self._context.budget) for p in parts]
        blocks = [part.block() for part in held]
        if any(b.columns.keys() != blocks[0].columns.keys() for b in blocks):
            odd = next(b for b in blocks if b.columns.keys() != blocks[0].columns.keys())
            raise SchemaChanged(f"interleave: datasets have columns {list(blocks[0].columns)} and {list(odd.columns)}.")
        return Window(blocks, order, [part.hold for part in held])

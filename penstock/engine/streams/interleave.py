"""Datasets opened per element and read in turns, as tf.data's interleave.

Covers: `ds.interleave(open_shard, cycle_length=)` and its state.
Does not cover: mixing a fixed set of datasets (combine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.block import column_value, to_numpy
from penstock.core.tree import unflatten
from penstock.engine.buffers.leased_rows import BatchList, Elements
from penstock.engine.streams.batch import ElementCutter
from penstock.engine.streams.stream import Piece, State, Stream
from penstock.engine.streams.transform import call


@dataclass
class _Open:
    """A dataset under way: where its element came from and how far it is read."""

    origin: State
    cut: ElementCutter
    turn_left: int


class Nested(Stream):
    """Up to `cycle` datasets at a time, `block` elements from each in turn."""

    def __init__(
        self,
        inner: Stream,
        open_one: Callable[[Any, State], Stream],
        *,
        cycle: int,
        block: int,
        state: State,
        again: Callable[[State], Stream],
    ) -> None:
        self._cut = ElementCutter(inner, None if state is None else state["in"])
        self._open_one = open_one
        self._cycle, self._block = max(1, cycle), max(1, block)
        self._open: list[_Open] = []
        self._turn = 0 if state is None else state["turn"]
        for saved in [] if state is None else state["open"]:
            # The element that made this dataset is pulled once more, from the state before it.
            once = ElementCutter(again(saved["from"]["in"]), saved["from"])
            once.fill(1)
            stream = self._opened(once.take(1)[0], saved["in"])
            once.close()
            self._open.append(_Open(saved["from"], ElementCutter(stream, saved["in"]), saved["left"]))

    def pull(self) -> Piece | None:
        while True:
            self._fill()
            if not self._open:
                return None
            self._turn %= len(self._open)
            current = self._open[self._turn]
            rows = min(current.cut.fill(1), current.turn_left)
            if not rows:
                current.cut.close()
                self._open.pop(self._turn)
                continue
            elements = current.cut.take(rows)[0]
            current.turn_left -= elements.nrows
            if not current.turn_left:
                current.turn_left = self._block
                self._turn = (self._turn + 1) % len(self._open)
            return Piece(elements, self._state())

    def ready(self) -> bool:
        return not self._open or self._open[self._turn % len(self._open)].cut.ready()

    def close(self) -> None:
        self._cut.close()
        for one in self._open:
            one.cut.close()

    def _fill(self) -> None:
        while len(self._open) < self._cycle:
            origin = self._cut.state()
            if not self._cut.fill(1):
                return
            stream = self._opened(self._cut.take(1)[0], None)
            # A newcomer waits for its turn at the end of the round, that is, before the current one.
            self._open.append(_Open(origin, ElementCutter(stream, None), self._block))

    def _opened(self, elements: Elements, state: State) -> Stream:
        return self._open_one(element_value(elements), None if state is None else state["in"])

    def _state(self) -> State:
        return {
            "in": self._cut.state(),
            "turn": self._turn,
            "cycle": self._cycle,
            "open": [{"from": o.origin, "in": o.cut.state(), "left": o.turn_left} for o in self._open],
        }


def element_value(elements: Elements) -> tuple[Any, Any]:
    """The tree and the value of a single element."""
    if isinstance(elements, BatchList):
        batch = elements.batches[0]
        return batch.tree, unflatten(batch.tree, lambda name: to_numpy(batch.columns[name]))
    block = elements.slice(0, 1).block()
    return block.tree, unflatten(block.tree, lambda name: column_value(block.columns[name], 0))


def open_with(function: Callable[..., Any], element: tuple[Any, Any]) -> Any:
    """What the user's function makes of an element."""
    tree, value = element
    return call(function, tree, value, None)

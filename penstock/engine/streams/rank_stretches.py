"""A rank's part of a sharded chain: one stretch of the order, or several after the number of ranks has changed.

Covers: running the stretches one after the other, with their state; the rows of all of them as one order.
Does not cover: cutting them (order/position.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from penstock.engine.streams.stream import Piece, State, Stream
from penstock.order.stripe import Stripe

RankStretch = dict[str, Any]


def whole(rank: int, world: int) -> State:
    """The state before the first row: one stretch, all that the rank has."""
    return {"stretches": [{"stripe": [rank, world, 0, None], "at": None, "thin": None}], "stretch": 0, "at": None}


class RankStretches(Stream):
    """Streams over stripes, in turn. `build(stripe, thin, state)` makes one; `thin_for(world)` says how to divide."""

    def __init__(
        self,
        build: Callable[[Stripe, bool, State], Stream],
        thin_for: Callable[[int], bool],
        rank: int,
        world: int,
        state: State,
    ) -> None:
        self._build = build
        state = whole(rank, world) if state is None else state
        self._stretches: list[RankStretch] = [
            stretch if stretch["thin"] is not None else {**stretch, "thin": thin_for(stretch["stripe"][1])}
            for stretch in state["stretches"]
        ]
        self._number: int = state["stretch"]
        self._drop = 0
        self._opened: State = None
        self._inner: Stream
        self._start = self._state(state["at"])
        self._open(state["at"])

    def start(self) -> State:
        return self._start

    def pull(self) -> Piece | None:
        while True:
            piece = self._inner.pull()
            if piece is not None:
                rows = piece.elements.nrows
                dropped = min(self._drop, rows)  # more than a piece, where a process alone had gone further
                self._drop -= dropped
                if dropped == rows:
                    continue
                elements = piece.elements.slice(dropped, rows) if dropped else piece.elements
                before, self._opened = self._opened, None
                return Piece(elements, self._state({"in": piece.after, "used": 0}), before)
            if self._number + 1 >= len(self._stretches):
                return None
            self._inner.close()
            self._number += 1
            self._open(self._stretches[self._number]["at"])
            self._opened = self._state(self._stretches[self._number]["at"])

    def ready(self) -> bool:
        return self._inner.ready()

    def close(self) -> None:
        self._inner.close()

    def _open(self, at: State) -> None:
        stretch = self._stretches[self._number]
        rank, world, start, stop = stretch["stripe"]
        self._drop = 0 if at is None else at["used"]
        self._inner = self._build(Stripe(rank, world, start, stop), stretch["thin"], None if at is None else at["in"])

    def _state(self, at: State) -> State:
        return {"stretches": self._stretches, "stretch": self._number, "at": at}


class StretchRows(Protocol):
    """The rows of one stretch."""

    @property
    def count(self) -> int: ...

    def rows(self, first: int, last: int) -> np.ndarray: ...


class RankRows:
    """The rows that a rank still has to read as one order, so that batches can be decoded straight from them.

    Its states are those of batches cut from `RankStretches`: either can go on where the other stopped.
    """

    def __init__(self, order_of: Callable[[Stripe], StretchRows], rank: int, world: int, state: State) -> None:
        inside = whole(rank, world) if state is None else state["in"]
        self._stretches: list[RankStretch] = [{**stretch, "thin": False} for stretch in inside["stretches"]]
        self._first: int = inside["stretch"]
        self._orders = [order_of(Stripe(*stretch["stripe"])) for stretch in self._stretches[self._first :]]
        starts = [inside["at"], *(stretch["at"] for stretch in self._stretches[self._first + 1 :])]
        self._begins = [0 if at is None else (at["in"] or 0) + at["used"] for at in starts]
        self._begins[0] += 0 if state is None else state["used"]
        left = [max(0, s.count - begin) for s, begin in zip(self._orders, self._begins, strict=True)]
        self._ends = np.cumsum(left)
        self.start = self._state(0, inside["at"]) if state is None else state

    @property
    def count(self) -> int:
        return int(self._ends[-1])

    def rows(self, first: int, last: int) -> np.ndarray:
        """Row numbers for the counters first..last-1, which count all stretches through."""
        found, before = [], 0
        for order, begin, end in zip(self._orders, self._begins, self._ends.tolist(), strict=True):
            low, high = max(first, before), min(last, end)
            if low < high:
                found.append(order.rows(begin + low - before, begin + high - before))
            before = end
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])

    def after(self, count: int) -> State:
        """The state when so many rows have been read."""
        number = int(np.searchsorted(self._ends, count))
        before = int(self._ends[number - 1]) if number else 0
        return self._state(number, {"in": self._begins[number] + count - before, "used": 0})

    def _state(self, number: int, at: State) -> State:
        return {"in": {"stretches": self._stretches, "stretch": self._first + number, "at": at}, "used": 0, "group": 1}

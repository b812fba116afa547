"""The position of a single process, as that of rank 0 of 1.

Covers: rewriting the state of a chain that was not divided, so that its rest can be dealt to several ranks.
Does not cover: dealing it out (order/elastic.py).

A process alone makes small batches several at a time, so its position may stand inside of such a group. Rows are what
ranks divide: the batches that were taken of the group become rows that the first rank reads again and leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.errors import PositionError
from penstock.engine.segment import decodes_into_batches, segment_of, source_of
from penstock.engine.streams.rank_stretches import whole
from penstock.order.position import Position, State
from penstock.plan.rewrite import batched
from penstock.plan.steps import Batch, Filter, Map, MapBatches, Node, Repeat


@dataclass(frozen=True)
class _Taken:
    """Elements that have left since a state, and how far the source had been read for them."""

    count: int = 0
    reach: int = 0

    def plus(self, level: dict[str, Any]) -> _Taken:
        return _Taken(self.count + int(level["used"]), max(self.reach, int(level.get("to", 0))))


def as_only_rank(position: Position, node: Node) -> Position:
    """The position as `shard(0, 1)` would have it; `node` is the rewritten plan without a division."""
    if "batch" not in position:
        raise PositionError("The position was taken by an earlier version, in one process: resume with one.")
    state = position["state"]
    inner = _divided(node, state["in"], _Taken().plus(state), int(position["batch"][1]))
    return {**position, "state": {"in": inner, "used": 0}, "shard": [0, 1]}


def _divided(node: Node, state: State, taken: _Taken, batch: int) -> State:
    segment = segment_of(node, source_of)
    if segment is not None:
        return _one_stretch(state, taken)
    step = node.step
    if isinstance(step, Repeat):
        found = {"in": None, "round": 0} if state is None else state
        return {**found, "in": _divided(node.input, found["in"], taken, batch)}
    if isinstance(step, Batch):
        below = segment_of(node.input, source_of)
        rows = _Taken(taken.count * batch, taken.reach)
        if below is not None and decodes_into_batches(below):
            inner = _one_stretch(state, rows)
        else:
            level = {"in": None, "used": 0} if state is None else state
            inner = _divided(node.input, level["in"], rows.plus(level), batch)
        return {"in": inner, "used": 0, "group": 1}
    return _mapped(node, state, taken, batch)


def _mapped(node: Node, state: State, taken: _Taken, batch: int) -> State:
    """Functions of batches: as many come out as go in, unless one leaves some out."""
    exact = True
    while isinstance(node.step, (Map, MapBatches, Filter)):
        exact = exact and isinstance(node.step, Map)
        node = node.input
    if not batched(node):
        raise PositionError(f"A run of one process cannot be divided at {node.step.describe()}.")
    if taken.count and not exact:
        raise PositionError(
            "The position stands between batches that were made together, and a filter of batches hides which. "
            "Filter rows before batch(), or resume with one process."
        )
    found: dict[str, Any] = {"in": {"in": None, "used": 0}, "count": 0} if state is None else state
    inner = _divided(node, found["in"]["in"], taken.plus(found["in"]), batch)
    return {"in": {"in": inner, "used": 0}, "count": found["count"]}


def _one_stretch(state: State, taken: _Taken) -> State:
    at = None if state is None and not taken.count else {"in": state, "used": taken.count, "to": taken.reach}
    return {**whole(0, 1), "at": at}

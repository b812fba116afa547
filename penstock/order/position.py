"""Positions: where a stream stands, as a small piece of JSON.

Covers: writing and checking positions, how far a state has read.
Does not cover: what each stream puts into its state (engine/), other numbers of ranks (order/elastic.py).

A position is {"v", "plan", "data", "epoch", "done", "state", "batch"}, and "shard" where a chain was divided among
ranks. "batch" is the plan without the sizes of its batches, and that size: other numbers of ranks have other sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import PositionError

VERSION = 1

State = Any
Position = dict[str, Any]


def write_position(
    *, plan: str, data: str, epoch: int, done: int, state: State, batch: tuple[str, int] | None = None
) -> Position:
    """A position as plain JSON values."""
    where = {"v": VERSION, "plan": plan, "data": data, "epoch": epoch, "done": done, "state": state}
    return where if batch is None else {**where, "batch": list(batch)}


def read_position(position: Position | str, *, plan: str, data: str, unsized: str | None = None) -> Position:
    """Check that a position belongs to this plan and this data; given `unsized`, its batches may have other sizes."""
    found = json.loads(position) if isinstance(position, str) else position
    if not isinstance(found, Mapping) or "state" not in found:
        raise PositionError("This is not a position: take it from `it.position` of an iterator.")
    if found.get("v") != VERSION:
        raise PositionError(f"The position has format {found.get('v')}; this version reads {VERSION}.")
    if found["plan"] != plan and (unsized is None or found.get("batch", [""])[0] != unsized):
        raise PositionError(
            f"The position belongs to another chain of steps ({found['plan']}, this one is {plan}). "
            "Resume with the same steps in the same order and the same sizes; functions may differ."
        )
    if found["data"] != data:
        raise PositionError(
            f"The data has changed since the position was taken (fingerprint {found['data']}, now {data})."
        )
    return dict(found)


def progress(state: State) -> int:
    """How far the source below a state has been read, in units or rows of its rank."""
    if isinstance(state, bool) or state is None:
        return 0
    if isinstance(state, int):
        return state
    if isinstance(state, Mapping):
        if "next" in state:
            return int(state["next"])
        return max(progress(state.get("in")), progress(state.get("at")), int(state.get("to", 0)))
    return 0

"""Positions: where a stream stands, as a small piece of JSON, and how several of them become one.

Covers: writing and checking positions, and dividing what is left of an epoch when the number of ranks changes.
Does not cover: what each stream puts into its state (engine/).

A position is {"v", "plan", "data", "epoch", "done", "state"}. Inside `state`, a chain that was sharded keeps its legs:
stretches of the global order still to be read by this rank, each with the rank and world it was cut for.
When the world changes, every old rank's open stretch is closed at the furthest place any rank has reached,
the closed remains are dealt to the new ranks, and everything after that place is cut anew. Nothing is listed per
sample, nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.core.errors import PositionError

VERSION = 1

State = Any
Position = dict[str, Any]


def write_position(*, plan: str, data: str, epoch: int, done: int, state: State) -> Position:
    """A position as plain JSON values."""
    return {"v": VERSION, "plan": plan, "data": data, "epoch": epoch, "done": done, "state": state}


def read_position(position: Position | str, *, plan: str, data: str) -> Position:
    """Check that a position belongs to this plan and this data."""
    found = json.loads(position) if isinstance(position, str) else position
    if not isinstance(found, Mapping) or "state" not in found:
        raise PositionError("This is not a position: take it from `it.position` of an iterator.")
    if found.get("v") != VERSION:
        raise PositionError(f"The position has format {found.get('v')}; this version reads {VERSION}.")
    if found["plan"] != plan:
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


def merge(positions: Sequence[Position], rank: int, world: int) -> Position:
    """What rank `rank` of `world` still has to do, given the positions of all old ranks."""
    _check_together(positions)
    begun = [p for p in positions if p["state"]["in"] is not None]
    if not begun:
        return {**positions[0], "state": None, "done": 0}
    found = [_open_legs(p) for p in positions]
    last = [legs[-1] for legs in found]
    # A rank that has not begun does not know where the last division was made; the others do.
    _, old_world, start, _ = _open_legs(begun[0])[-1]["stripe"]
    thin = _open_legs(begun[0])[-1]["thin"]
    last = [
        leg if leg["at"] else {**leg, "stripe": [leg["stripe"][0], old_world, start, None], "thin": thin}
        for leg in last
    ]
    if sorted(leg["stripe"][0] for leg in last) != list(range(old_world)):
        raise PositionError(f"Positions of all {old_world} ranks are needed, each once; {len(positions)} were given.")
    reached = max(progress(leg["at"]) for leg in last)
    # A thinned source is read whole by every rank, which keeps every n-th row: places count once, not per rank.
    end = start + reached * (1 if thin else old_world)
    closed = [leg for legs in found for leg in legs[:-1]]
    closed += [
        {**leg, "stripe": [*leg["stripe"][:3], end]}
        for leg in last
        if progress(leg["at"]) < reached or _partial(leg["at"])
    ]
    mine = closed[rank::world]
    legs = [*mine, {"stripe": [rank, world, end, None], "at": None, "thin": None}]
    return {**begun[0], "state": _replaced(begun[0]["state"], {"legs": legs, "leg": 0, "at": legs[0]["at"]})}


def _check_together(positions: Sequence[Position]) -> None:
    first = positions[0]
    for other in positions[1:]:
        for key in ("plan", "data", "epoch"):
            if other[key] != first[key]:
                raise PositionError(f"The positions disagree in {key}: {first[key]} and {other[key]}.")
    rounds = {_round_of(p["state"]) for p in positions}
    if len(rounds) > 1:
        raise PositionError(f"The ranks stand in different rounds of repeat: {sorted(rounds)}.")


def _find_legs(state: State) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The one place in a state where a sharded chain keeps its legs, and the rows used of the piece there."""
    used = 0
    while isinstance(state, Mapping):
        if "legs" in state:
            yield used, state
            return
        used, state = int(state.get("used", 0)), state.get("in")


def _open_legs(position: Position) -> list[dict[str, Any]]:
    """The legs not yet finished, the current one with the exact place in it."""
    if "shard" not in position:
        raise PositionError("The number of ranks can change only for chains divided with shard(i, n).")
    state = position["state"]
    for used, holder in _find_legs(state):
        legs = [dict(leg) for leg in holder["legs"][holder["leg"] :]]
        at = holder["at"]
        if used:
            base = at or {"in": None, "used": 0}
            at = {"in": base["in"], "used": base["used"] + used, "to": _reach_of(state)}
        legs[0]["at"] = at
        return legs
    if state["in"] is not None:
        raise PositionError(
            "The number of ranks cannot change here: shard(i, n) must come before batch and right after reading."
        )
    return [{"stripe": [*position["shard"], 0, None], "at": None, "thin": None}]


def _reach_of(state: State) -> int:
    """How far the source had been read for the piece in use, as the cutter above the legs noted it."""
    reach = 0
    while isinstance(state, Mapping) and "legs" not in state:
        reach, state = int(state.get("to", 0)), state.get("in")
    return reach


def _partial(at: State) -> bool:
    """Whether a leg stands inside a window or block, so that something of it is left over."""
    if not isinstance(at, Mapping):
        return False
    return any(at.get(key) for key in ("used", "open", "carry")) or _partial(at.get("in"))


def _round_of(state: State) -> int:
    while isinstance(state, Mapping):
        if "round" in state:
            return int(state["round"])
        state = state.get("in")
    return 0


def _replaced(state: State, legs: State) -> State:
    """The outer state with new legs inside, standing at their beginning."""
    if isinstance(state, Mapping) and "legs" in state:
        return legs
    inner = {key: value for key, value in state.items() if key != "to"}
    inner["in"] = _replaced(state["in"], legs)
    if "used" in inner:
        inner["used"] = 0
    return inner

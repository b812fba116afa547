"""Several positions become one: what is left of an epoch is divided anew when the number of ranks changes.

Covers: the states of sharded chains, with `repeat` and `batch` above the shard.
Does not cover: which chains can be divided anew (plan/elastic.py), running the result (engine/).

A sharded chain keeps stretches in its state: parts of the global order still to be read by this rank, each with the
rank and world it was cut for. When the world changes, every old rank's open stretch is closed at the furthest place
any rank has reached, the closed remains are dealt to the new ranks, and everything after that place is cut anew.
Ranks may stand in different rounds of `repeat`: each round that any of them has begun is divided by itself, and the
rounds to come are kept beside the first. Nothing is listed per sample, nothing is lost and nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import PositionError
from penstock.order.position import Position, State, progress

RankStretch = dict[str, Any]

_TO_THE_END = 1 << 62
"""Where a stretch stops that reaches to the end of the data, when no place after it is left to divide."""

_NOTHING: RankStretch = {"stripe": [0, 1, 0, 0], "at": None, "thin": False}


def merge(positions: Sequence[Position], rank: int, world: int) -> Position:
    """What rank `rank` of `world` still has to do, given the positions of all old ranks."""
    _check_together(positions)
    begun = [p for p in positions if p["state"]["in"] is not None]
    if not begun:
        return {**positions[0], "state": None, "done": 0}
    rounds = [_round(p["state"]) for p in positions]
    last = max(at + len(later) for at, later in rounds)
    divided = [
        _divided([_stretches_in(p, number) for p in positions], rank, world)
        for number in range(min(at for at, _ in rounds), last + 1)
    ]
    return {**begun[0], "state": _replaced(begun[0]["state"], min(at for at, _ in rounds), divided)}


def _check_together(positions: Sequence[Position]) -> None:
    first = positions[0]
    for other in positions[1:]:
        for key in ("plan", "data", "epoch", "batch"):
            if other.get(key) != first.get(key):
                raise PositionError(f"The positions disagree in {key}: {first.get(key)} and {other.get(key)}.")
    if any("shard" not in p for p in positions):
        raise PositionError("The number of ranks can change only for chains divided with shard(i, n).")
    world = first["shard"][1]
    if sorted(tuple(p["shard"]) for p in positions) != [(index, world) for index in range(world)]:
        raise PositionError(f"Positions of all {world} ranks are needed, each once; {len(positions)} were given.")


def _round(state: State) -> tuple[int, list[State]]:
    """The round of `repeat` a state stands in, and the divisions that are known of the rounds after it."""
    found = [level for level in _levels(state) if "round" in level]
    if len(found) > 1:
        raise PositionError("The number of ranks cannot change in a repeat inside of another one.")
    return (int(found[0]["round"]), found[0].get("later", [])) if found else (0, [])


def _levels(state: State) -> list[Mapping[str, Any]]:
    """The states of the steps above the stretches, from the outside in."""
    found = []
    while isinstance(state, Mapping) and "stretches" not in state:
        found.append(state)
        state = state.get("in")
    return found


def _holder(state: State) -> State:
    """The state that keeps the stretches; None if the rank has not begun."""
    while isinstance(state, Mapping) and "stretches" not in state:
        state = state.get("in")
    return state


def _stretches_in(position: Position, number: int) -> list[RankStretch] | None:
    """What a rank has left of a round; None if it is through with it."""
    at, later = _round(position["state"])
    if number < at:
        return None
    if number == at:
        return _open_stretches(position)
    if number - at <= len(later):
        return [dict(stretch) for stretch in _holder(later[number - at - 1])["stretches"]]
    return [{"stripe": [*position["shard"], 0, None], "at": None, "thin": None}]


def _open_stretches(position: Position) -> list[RankStretch]:
    """The stretches not yet finished, the current one with the exact place in it."""
    levels = _levels(position["state"])
    holder = _holder(position["state"])
    if holder is None:
        return [{"stripe": [*position["shard"], 0, None], "at": None, "thin": None}]
    # Rows are counted where pieces of the source are cut; batches above come one in a piece, so nothing is counted.
    used = sum(int(level.get("used", 0)) for level in levels)
    stretches = [dict(stretch) for stretch in holder["stretches"][holder["stretch"] :]]
    at = holder["at"]
    if used:
        base = at or {"in": None, "used": 0}
        reach = max(int(level.get("to", 0)) for level in levels)
        at = {"in": base["in"], "used": base["used"] + used, "to": reach}
    stretches[0]["at"] = at
    return stretches


def _divided(found: Sequence[list[RankStretch] | None], rank: int, world: int) -> State:
    """One round's stretches of all old ranks, dealt to the new ones."""
    left = [stretches for stretches in found if stretches is not None]
    open_ended = [stretches[-1] for stretches in left if stretches[-1]["stripe"][3] is None]
    if len(open_ended) < len(found):  # some rank has reached the end: there is no place after which to cut anew
        all_left = [_stopped(stretch, _TO_THE_END) for stretches in left for stretch in stretches]
        mine = all_left[rank::world] or [_NOTHING]
        return {"stretches": mine, "stretch": 0, "at": mine[0]["at"]}
    closed = [stretch for stretches in left for stretch in stretches[:-1]]
    reached = max(progress(stretch["at"]) for stretch in open_ended)
    _, old_world, start, _ = open_ended[0]["stripe"]
    # A thinned source is read whole by every rank, which keeps every n-th row: places count once, not per rank.
    thin = any(stretch["thin"] for stretch in open_ended)
    end = start + reached * (1 if thin else old_world)
    closed += [
        _stopped({**stretch, "thin": thin}, end)
        for stretch in open_ended
        if progress(stretch["at"]) < reached or _partial(stretch["at"])
    ]
    stretches = [*closed[rank::world], {"stripe": [rank, world, end, None], "at": None, "thin": None}]
    return {"stretches": stretches, "stretch": 0, "at": stretches[0]["at"]}


def _stopped(stretch: RankStretch, stop: int) -> RankStretch:
    """A stretch with an end, unless it has one."""
    return stretch if stretch["stripe"][3] is not None else {**stretch, "stripe": [*stretch["stripe"][:3], stop]}


def _partial(at: State) -> bool:
    """Whether a stretch stands inside a window or block, so that something of it is left over."""
    if not isinstance(at, Mapping):
        return False
    return any(at.get(key) for key in ("used", "open", "carry")) or _partial(at.get("in"))


def _replaced(state: State, number: int, divided: Sequence[State]) -> State:
    """The outer state with new stretches inside, standing at their beginning, in round `number` of a repeat."""
    if "stretches" in state:
        return divided[0]
    outer = {key: value for key, value in state.items() if key not in ("to", "later")}
    outer["in"] = _replaced(state["in"], number, divided[:1] if "round" in state else divided)
    if "used" in outer:
        outer["used"] = 0
    if "round" in outer:
        outer["round"] = number
        if len(divided) > 1:
            outer["later"] = [_replaced(state["in"], number, [later]) for later in divided[1:]]
    return outer

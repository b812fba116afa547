"""Channel dependency groups, and which channels stay.

Covers: giving every channel a number, joining numbers that must live and die together, choosing what stays.
Does not cover: reading a framework's graph (compress/keras/ and torch/trace.py), cutting weights (width.py).

Each tensor's channel axis is described by an array of channel numbers, one a feature. Flattening 7x7 pixels of
32 channels is then `tile(ids, 49)`, concatenating is `concatenate`, a residual add joins two arrays element by
element. So every graph of standard layers follows from four array operations.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.core.errors import InvalidInput

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Scope = Literal["layer", "global"]


@dataclass(frozen=True)
class Slot:
    """One axis of one stored array that follows channels. `scored` marks the axis along which it makes them."""

    array: Hashable
    axis: int
    ids: Ids
    scored: bool = False


@dataclass(frozen=True)
class Tie:
    """One follower stays for every `size` leaders that stay: a layer's heads and the width that is made of them."""

    leaders: Ids
    followers: Ids
    size: int
    where: str


@dataclass
class Channels:
    """Numbers for channels, joined into families. `pinned` maps a family's channel to why it must stay."""

    parents: list[int] = field(default_factory=list)
    blocks: list[tuple[str, int, int]] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)

    def fresh(self, count: int, owner: str) -> Ids:
        """Numbers for the channels that a layer makes."""
        start = len(self.parents)
        self.parents.extend(range(start, start + count))
        self.blocks.append((owner, start, start + count))
        return np.arange(start, start + count, dtype=np.int64)

    def join(self, first: Ids, second: Ids, where: str) -> Ids:
        """Make two channel axes one, element by element."""
        if len(first) != len(second):
            raise InvalidInput(f"{where} joins {len(first)} with {len(second)} channels; such a graph cannot be cut.")
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            low, high = sorted((self._root(a), self._root(b)))
            self.parents[high] = low
        return first

    def pin(self, ids: Ids, reason: str) -> None:
        """Keep these channels whatever happens."""
        for one in ids.tolist():
            self.pinned.setdefault(one, reason)

    def roots(self, ids: Ids) -> Ids:
        """The number that stands for each channel's family."""
        return np.array([self._root(one) for one in ids.tolist()], dtype=np.int64)

    def fixed(self) -> Mask:
        """True for every number whose family holds a pinned channel."""
        fixed = np.zeros(len(self.parents), dtype=bool)
        for one in self.pinned:
            fixed[self._root(one)] = True
        return fixed[self.roots(np.arange(len(self.parents)))]

    def reason(self, ids: Ids) -> str:
        """Why the first pinned family among these stays; empty when none is pinned."""
        roots = set(self.roots(ids).tolist())
        return next((why for one, why in self.pinned.items() if self._root(one) in roots), "")

    def _root(self, one: int) -> int:
        parents = self.parents
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        return one


@dataclass
class Trace:
    """What reading a model's graph found: the channels, the arrays that follow them, the sizes in layer configs."""

    channels: Channels = field(default_factory=Channels)
    slots: list[Slot] = field(default_factory=list)
    sizes: list[tuple[Hashable, str, Ids]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)

    def slot(self, array: Hashable, axis: int, ids: Ids, *, scored: bool = False) -> None:
        self.slots.append(Slot(array, axis, ids, scored))

    def leave(self, ids: Ids, reason: str) -> None:
        """Pin channels and say why, once."""
        self.channels.pin(ids, reason)
        if reason not in self.notes:
            self.notes.append(reason)

    def scores(self, arrays: dict[Hashable, npt.NDArray[np.floating]]) -> npt.NDArray[np.float64]:
        """How much each family matters: the squared weights that make it, relative to its layer's mean."""
        total = np.zeros(len(self.channels.parents))
        for slot in self.slots:
            if not slot.scored:
                continue
            weights = np.moveaxis(arrays[slot.array].astype(np.float64), slot.axis, 0)
            norms = np.square(weights).reshape(len(weights), -1).sum(axis=1)
            np.add.at(total, self.channels.roots(slot.ids), norms / max(norms.mean(), 1e-30))
        return total

    def settle(self) -> None:
        """Pin both ends of every tie that cannot be kept; call it once the whole graph has been read."""
        channels, moved = self.channels, True
        while moved:  # a pin may reach the leaders of another tie
            moved = False
            fixed, roots = channels.fixed(), channels.roots(np.arange(len(channels.parents)))
            for tie in self.ties:
                ends = np.concatenate([tie.leaders, tie.followers])
                if fixed[ends].all() or (not fixed[ends].any() and self._one_block(roots[tie.leaders])):
                    continue
                why = channels.reason(ends) or "its width is put together from several layers"
                self.leave(ends, f"{tie.where} keeps its heads, because its width must be a multiple of theirs: {why}")
                moved = True

    def _one_block(self, leaders: Ids) -> bool:
        start, stop = next((a, b) for _, a, b in self.channels.blocks if a <= leaders[0] < b)
        block = np.arange(start, stop)
        return bool(sorted(leaders.tolist()) == block[self.channels.roots(block) == block].tolist())

    def keep(
        self,
        scores: npt.NDArray[np.float64],
        fraction: float,
        *,
        scope: Scope = "layer",
        multiple: int = 1,
    ) -> Mask:
        """True for every number that stays when `fraction` of each layer's channels (or of all) may stay."""
        channels = self.channels
        everyone = np.arange(len(channels.parents))
        roots, fixed = channels.roots(everyone), channels.fixed()
        stays, following = fixed.copy(), np.zeros(len(roots), dtype=bool)
        for tie in self.ties:
            following[roots[tie.followers]] = True
        own = [
            np.flatnonzero((roots == everyone) & ~fixed & ~following & _between(everyone, a, b))
            for _, a, b in channels.blocks
        ]
        free = [members for members in own if len(members)]
        if not free:
            raise InvalidInput("No channel of this model can be removed. " + " ".join(self.notes))
        floor = -np.inf
        if scope == "global":
            ranked = np.sort(scores[np.concatenate(free)])
            floor = float(ranked[min(len(ranked) - 1, round(len(ranked) * (1 - fraction)))])
        for members in free:
            wanted = len(members) * fraction if scope == "layer" else float((scores[members] >= floor).sum())
            step = math.lcm(multiple, *(t.size for t in self.ties if np.isin(roots[t.leaders], members).any()))
            count = min(len(members), max(step, round(wanted / step) * step))
            stays[_best(members, scores, count)] = True
        for tie in self.ties:
            if not fixed[tie.followers].all():
                count = int(stays[roots[tie.leaders]].sum()) // tie.size
                stays[_best(roots[tie.followers], scores, count)] = True
        return stays[roots]


def _best(members: Ids, scores: npt.NDArray[np.float64], count: int) -> Ids:
    return members[np.argsort(-scores[members], kind="stable")[:count]]


def _between(numbers: Ids, start: int, stop: int) -> Mask:
    return (numbers >= start) & (numbers < stop)


def cut(array: npt.NDArray[np.generic], slots: list[Slot], keep: Mask) -> npt.NDArray[np.generic]:
    """An array without the channels that go."""
    for slot in slots:
        array = np.compress(keep[slot.ids], array, axis=slot.axis)
    return array

"""An optimizer step cut into pieces, so that undoing one piece takes little memory.

Covers: how parameters are packed and sliced into units of at most so many bytes.
Does not cover: taking the units (roll_forward.py), what a unit is in a framework (guard/torch/, guard/keras/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.03
"""Share of the persistent state (parameters and optimizer state) that an undo buffer may take."""
LEAST = 2**20
"""A buffer of this size is always allowed: small models are stepped in one piece."""


@dataclass(frozen=True, slots=True)
class Item:
    """One parameter with its state: elements, bytes to undo per element, and whether it may be cut anywhere."""

    numel: int
    nbytes_each: float
    sliceable: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes to undo for the whole parameter."""
        return int(self.numel * self.nbytes_each)


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of one item."""

    item: int
    start: int
    stop: int


Unit = tuple[Slice, ...]


def allowance(items: Sequence[Item]) -> int:
    """Bytes that the undo buffer for these items may take."""
    return max(LEAST, int(SHARE * sum(item.nbytes for item in items)))


def plan(items: Sequence[Item], nbytes: int) -> list[Unit]:
    """Units of at most `nbytes` each, in order. An item that may not be cut stays whole, whatever its size."""
    units: list[Unit] = []
    pack: list[Slice] = []
    filled = 0
    for index, item in enumerate(items):
        if item.nbytes > nbytes:
            units += [tuple(pack)] if pack else []
            pack, filled = [], 0
            units += [(piece,) for piece in _cut(index, item, nbytes)]
            continue
        if pack and filled + item.nbytes > nbytes:
            units.append(tuple(pack))
            pack, filled = [], 0
        pack.append(Slice(index, 0, item.numel))
        filled += item.nbytes
    return [*units, tuple(pack)] if pack else units


def largest(items: Sequence[Item], units: Sequence[Unit]) -> int:
    """Bytes of the largest unit."""
    sizes = (sum((s.stop - s.start) * items[s.item].nbytes_each for s in unit) for unit in units)
    return int(max(sizes, default=0))


def _cut(index: int, item: Item, nbytes: int) -> list[Slice]:
    if not item.sliceable:
        return [Slice(index, 0, item.numel)]
    each = max(1, int(nbytes / item.nbytes_each))
    return [Slice(index, start, min(item.numel, start + each)) for start in range(0, item.numel, each)]

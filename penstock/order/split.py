"""Two sides of one source, to train on and to validate on, without reading or remembering anything.

Covers: views of a source that share no row and together have all.
Does not cover: which sources of a chain are split (sides.py), shuffling (permutation.py), cross-validation.

Of every group of `q` members, `p` are kept back (p/q is the share asked for), at places that a hash of the group's
number turns around: data that repeats itself every few rows does not meet the same place each time. What is a member
depends on the source: rows of a source that numbers them; of text files large enough, the small pieces in which a
shuffle reads them, so that both sides are read as fast as the whole; else the rows of a block, counted from its start.
Blocks and pieces are the same at every reading, whatever the budget, so no row is on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import ByteCache
from penstock.core.source import NEW_MEMORY, Buffers, PieceSource, RowSource, Source, UnitSource
from penstock.core.wrapped_source import WrappedRows, WrappedUnits, closing

Side = Literal["train", "val"]

LARGEST_GROUP = 100
"""Small enough that blocks of a few hundred rows still give some rows to both sides."""
MANY_PIECES = 1000
"""From so many on, text is dealt out in pieces: a tenth of them is still a hundred places all over the data."""


@dataclass(frozen=True)
class Rule:
    """Which rows of a group are kept back: `kept` of `group`."""

    kept: int
    group: int
    seed: int = 0

    @classmethod
    def of(cls, share: float, seed: int = 0) -> Rule:
        """The rule nearest to a share of rows."""
        near = Fraction(share).limit_denominator(LARGEST_GROUP)
        return cls(near.numerator, near.denominator, seed)

    def places(self, side: Side) -> np.ndarray:
        """Places in a group that belong to a side, before the turn."""
        held = ((np.arange(self.kept) + 0.5) * self.group / self.kept).astype(np.int64) if self.kept else np.array([])
        mask = np.zeros(self.group, bool)
        mask[held.astype(np.int64)] = True
        return np.flatnonzero(mask if side == "val" else ~mask)

    def count(self, total: int, side: Side) -> int:
        """Members of a side among `total`."""
        return total // self.group * len(self.places(side)) + len(self._tail(total, side))

    def rows(self, numbers: np.ndarray, total: int, side: Side) -> np.ndarray:
        """Numbers in the whole source for numbers of a side, in the order of the source."""
        places, whole = self.places(side), total // self.group
        before = whole * len(places)
        if not len(places):
            return numbers
        group, inside = np.divmod(numbers, len(places))
        turn = self._turn(group)
        first = np.searchsorted(places, self.group - turn)  # the turn moves the places from here on to the front
        found: np.ndarray = group * self.group + (places[(inside + first) % len(places)] + turn) % self.group
        tail = self._tail(total, side)
        if len(tail) and len(numbers) and int(numbers.max()) >= before:
            last = np.clip(numbers - before, 0, len(tail) - 1)
            found = np.where(numbers >= before, whole * self.group + tail[last], found)
        return found

    def _tail(self, total: int, side: Side) -> np.ndarray:
        """Places of a side in the unfinished last group: as in a whole one, as far as there are members."""
        whole, rest = divmod(total, self.group)
        turned = np.sort((self.places(side) + self._turn(np.array([whole]))) % self.group)
        return np.asarray(turned[turned < rest])

    def mask(self, unit: int, part: int, nrows: int, side: Side) -> np.ndarray:
        """Which rows of one block belong to a side."""
        held = np.zeros(nrows, bool)
        if self.kept:
            salted = Rule(self.kept, self.group, _mix(self.seed, unit, part))
            numbers = np.arange(salted.count(nrows, "val"))
            held[salted.rows(numbers, nrows, "val")] = True
        return held if side == "val" else ~held

    def _turn(self, group: np.ndarray) -> np.ndarray:
        """How far the pattern of a group is turned."""
        with np.errstate(over="ignore"):
            z = group.astype(np.uint64) + np.uint64((self.seed * 2 + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return ((z ^ (z >> np.uint64(31))) % np.uint64(self.group)).astype(np.int64)


def split(source: Source, share: float, side: Side, seed: int = 0) -> Source:
    """One side of a source. A share of 0 leaves everything to training."""
    if share <= 0:
        return source
    rule = Rule.of(share, seed)
    return RowSide(source, rule, side) if isinstance(source, RowSource) else UnitSide(source, rule, side)


class RowSide(WrappedRows):
    """The rows of one side of a source of single rows."""

    def __init__(self, source: RowSource, rule: Rule, side: Side) -> None:
        super().__init__(source)
        self.rule, self.side = rule, side

    def num_rows(self) -> int:
        return self.rule.count(self.source.num_rows(), self.side)

    def fetch(self, rows: np.ndarray) -> Any:
        """The stored bytes of rows of this side."""
        return self.source.fetch(self.rule.rows(rows, self.source.num_rows(), self.side))

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} {self.side} {self.rule}"


class UnitSide(WrappedUnits):
    """One side of a source of units: some of its pieces, or every block, thinned."""

    def __init__(self, source: UnitSource, rule: Rule, side: Side) -> None:
        super().__init__(source)
        self.rule, self.side = rule, side

    def num_rows(self) -> int | None:
        """Unknown: it depends on where pieces and blocks end."""
        return None

    def through(self, cache: ByteCache) -> Self:
        other = super().through(cache)
        other.__dict__.pop("_pieces", None)  # found again, in the other source
        return other

    @cached_property
    def _pieces(self) -> PieceSource | None:
        """The source, if its pieces are dealt out whole: where they are many, so that each side is like the data."""
        source = self.source
        return source if isinstance(source, PieceSource) and source.num_pieces() >= MANY_PIECES else None

    def num_pieces(self) -> int:
        return 0 if self._pieces is None else self.rule.count(self._pieces.num_pieces(), self.side)

    def pieces_per_block(self) -> int:
        return 1 if self._pieces is None else max(1, self._pieces.pieces_per_block())

    def pieces_nbytes(self, count: int) -> int:
        assert self._pieces is not None
        return self._pieces.pieces_nbytes(count)

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """Pieces of this side, by their numbers on this side."""
        assert self._pieces is not None
        return self._pieces.read_pieces(self.rule.rows(pieces, self._pieces.num_pieces(), self.side), buffers)

    def decoded_nbytes(self) -> int:
        """This side's share of the whole."""
        return max(1, int(super().decoded_nbytes() * len(self.rule.places(self.side)) / self.rule.group))

    def num_units(self) -> int:
        return super().num_units() if self._pieces is None else -(-self.num_pieces() // self.pieces_per_block())

    def one_block(self, unit: int) -> bool:
        return self._pieces is not None or super().one_block(unit)

    def unit_nbytes(self, unit: int) -> int:
        """Of pieces; or of a block, beside which its thinned copy stands for a moment."""
        if self._pieces is not None:
            return self._pieces.pieces_nbytes(len(self._pieces_of(unit)))
        return int(self.source.unit_nbytes(unit) * (2 if self.side == "train" else 1.5))

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The blocks of a unit, with only the rows of this side."""
        if self._pieces is not None:
            return (self.read_pieces(pieces, buffers) for pieces in [self._pieces_of(unit)][part:])

        def thinned(blocks: Iterator[Block]) -> Iterator[Block]:
            for number, block in enumerate(blocks, part):
                keep = np.flatnonzero(self.rule.mask(unit, number, block.nrows, self.side))
                yield block if len(keep) == block.nrows else block.take(keep)
                del block

        return closing(self.source.open(unit, part, buffers), thinned)

    def _pieces_of(self, unit: int) -> np.ndarray:
        """The neighbouring pieces that are read as one unit."""
        first = unit * self.pieces_per_block()
        return np.arange(first, min(first + self.pieces_per_block(), self.num_pieces()))

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} {self.side} {self.rule}"


def _mix(*numbers: int) -> int:
    """One number out of several."""
    out = 0
    for number in numbers:
        out = (out * 6364136223846793005 + number + 1442695040888963407) & (1 << 62) - 1
    return out

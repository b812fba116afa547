"""Keeping some rows back for validation, without reading or remembering anything.

Covers: two views of one source that share no row and together have all: one to train on, one to validate on.
Does not cover: shuffling (order/), cross-validation.

Of every group of `q` rows, `p` are kept back (p/q is the share asked for), at places that a hash of the group's number
turns around: data that repeats itself every few rows does not meet the same place each time. Row sources number their
rows; in unit sources a group is counted from the start of a block, and blocks are the same at every reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Schema
from penstock.core.source import OnError, RowSource, Source, UnitSource

Side = Literal["train", "val"]

LARGEST_GROUP = 100
"""Small enough that blocks of a few hundred rows still give some rows to both sides."""


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
        """Rows of a side among `total`; an unfinished last group is all for training."""
        held = total // self.group * self.kept
        return held if side == "val" else total - held

    def rows(self, numbers: np.ndarray, total: int, side: Side) -> np.ndarray:
        """Row numbers in the whole source for row numbers of a side."""
        places = self.places(side)
        if not len(places):
            return numbers
        group, inside = np.divmod(numbers, len(places))
        found: np.ndarray = group * self.group + (places[inside] + self._turn(group)) % self.group
        whole = total // self.group
        tail = group >= whole
        if side == "train" and tail.any():
            found = np.where(tail, numbers + whole * self.kept, found)
        return found

    def mask(self, unit: int, part: int, nrows: int, side: Side) -> np.ndarray:
        """Which rows of one block belong to a side."""
        held = np.zeros(nrows, bool)
        if self.kept:
            numbers = np.arange(self.count(nrows, "val"))
            salted = Rule(self.kept, self.group, _mix(self.seed, unit, part))
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


class RowSide:
    """The rows of one side of a source of single rows."""

    def __init__(self, inner: RowSource, rule: Rule, side: Side) -> None:
        self.inner, self.rule, self.side = inner, rule, side

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def on_error(self) -> OnError:
        return self.inner.on_error

    def schema(self) -> Schema:
        return self.inner.schema()

    def num_rows(self) -> int:
        return self.rule.count(self.inner.num_rows(), self.side)

    def fetch_nbytes(self, rows: int) -> int:
        return self.inner.fetch_nbytes(rows)

    def fetch(self, rows: np.ndarray) -> Any:
        """The stored bytes of rows of this side."""
        return self.inner.fetch(self.rule.rows(rows, self.inner.num_rows(), self.side))

    def decode(self, fetched: Any) -> Block:
        return self.inner.decode(fetched)

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray]) -> None:
        self.inner.decode_into(fetched, out)

    def fingerprint(self) -> str:
        return f"{self.inner.fingerprint()} {self.side} {self.rule}"


class UnitSide:
    """The rows of one side of a source of units: every block, thinned."""

    def __init__(self, inner: UnitSource, rule: Rule, side: Side) -> None:
        self.inner, self.rule, self.side = inner, rule, side

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def on_error(self) -> OnError:
        return self.inner.on_error

    def schema(self) -> Schema:
        return self.inner.schema()

    def num_units(self) -> int:
        return self.inner.num_units()

    def num_rows(self) -> int | None:
        """Unknown: it depends on where the blocks end."""
        return None

    def unit_nbytes(self, unit: int) -> int:
        """The thinned copy stands beside the block for a moment."""
        return int(self.inner.unit_nbytes(unit) * (2 if self.side == "train" else 1.5))

    def open(self, unit: int, part: int = 0) -> Iterator[Block]:
        """The blocks of a unit, each with only the rows of this side."""
        blocks = self.inner.open(unit, part)
        try:
            for number, block in enumerate(blocks, part):
                keep = np.flatnonzero(self.rule.mask(unit, number, block.nrows, self.side))
                yield block if len(keep) == block.nrows else block.take(keep)
                del block
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

    def fingerprint(self) -> str:
        return f"{self.inner.fingerprint()} {self.side} {self.rule}"


def _mix(*numbers: int) -> int:
    """One number out of several."""
    out = 0
    for number in numbers:
        out = (out * 6364136223846793005 + number + 1442695040888963407) & (1 << 62) - 1
    return out

"""Blocks made of small pieces from all over a dataset, so that a few of them look like the whole.

Covers: which pieces make which block, and a source of units whose units are such blocks.
Does not cover: reading pieces (the sources), mixing the rows of blocks (window_shuffle.py).

The pieces of a dataset are cut into strata of as many neighbours as there are blocks. Each stratum gives one piece to
each block, in an order of its own: every block holds a piece of every part of the dataset, all blocks are equally
large, and the last one of an epoch is no worse than the first. Pieces drawn without strata would leave gaps: with 192
of them a batch of 256 rows shows 0.82 of the hundredths of a dataset that a uniform shuffle shows, with strata 0.95.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError, PieceSource, UnitSource
from penstock.order.permutation import Permutation


class ScatteredBlocks:
    """A `UnitSource` over the pieces of another one: unit number n is the n-th block of a shuffled epoch."""

    def __init__(self, source: UnitSource, key: int) -> None:
        assert isinstance(source, PieceSource)
        self.base: UnitSource = source
        self._source, self._pieces = source, source
        self.total = source.num_pieces()
        self.blocks = max(1, -(-self.total // max(1, source.pieces_per_block())))
        self.strata = -(-self.total // self.blocks)
        self._order = Permutation(self.blocks, key)

    @property
    def label(self) -> str:
        return self._source.label

    @property
    def on_error(self) -> OnError:
        return self._source.on_error

    @property
    def remote(self) -> bool:
        """Whether some pieces have to be fetched from a store."""
        return bool(getattr(self._source, "remote", False))

    def schema(self) -> Schema:
        return self._source.schema()

    def num_units(self) -> int:
        return self.blocks

    def num_rows(self) -> int | None:
        return self._source.num_rows()

    def unit_nbytes(self, unit: int) -> int:
        return self._pieces.pieces_nbytes(self.strata)

    def one_block(self, unit: int) -> bool:
        return True

    def pieces(self, unit: int) -> np.ndarray:
        """The pieces of a block, in the order of the data; the last stratum may have none for it."""
        strata = np.arange(self.strata, dtype=np.int64)
        found = strata * self.blocks + self._order.at(np.full(self.strata, unit, np.int64), strata)
        return np.asarray(found[found < self.total])

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        if part == 0:
            yield self._pieces.read_pieces(self.pieces(unit), buffers)

    def fingerprint(self) -> str:
        return self._source.fingerprint()

"""Rows of a finished store as a source of units: each unit is some buckets, and so a random part of all rows.

Covers: which buckets a unit is, bytes to blocks.
Does not cover: the files (log.py), filling them (fill.py).

Whatever order of units and windows is laid over it, rows come in a uniformly random order: their buckets and the
windows are independent of the order of the data. Epochs differ in which units meet in a window and in the order inside;
rows of one unit stay in one window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError, UnitSource
from penstock.engine.cache.codec import RecordLayout, decode_block
from penstock.engine.rowstore.log import BUCKETS, RunReader

_STRETCHES = 1000
"""A unit is about this part of a store: its rows lie in every run, and runs of 32 MB are then read by 32 KB each."""


def unit_target(store_nbytes: int) -> int:
    """Bytes that a unit aims at: small ones take less memory, large ones fewer reads. The size of runs has no say."""
    return min(BLOCK_NBYTES, max(BLOCK_NBYTES // 4, store_nbytes // _STRETCHES))


class StoredRows:
    """A `UnitSource` over a row store."""

    def __init__(self, source: UnitSource, reader: RunReader) -> None:
        self.base = source
        self._reader = reader
        facts = reader.facts
        units = max(1, min(BUCKETS, -(-facts.nbytes // unit_target(facts.nbytes))))
        self._bounds = (np.arange(units + 1) * BUCKETS // units).tolist()
        self._layout = RecordLayout(source.schema()) if facts.stride else None
        self.label = f"row store of {source.label}"

    @property
    def on_error(self) -> OnError:
        return self.base.on_error

    def schema(self) -> Schema:
        return self.base.schema()

    def num_units(self) -> int:
        return len(self._bounds) - 1

    def num_rows(self) -> int:
        return self._reader.facts.rows

    def decoded_nbytes(self) -> int:
        return self._reader.facts.nbytes

    def unit_nbytes(self, unit: int) -> int:
        """The bytes as stored and the block made of them."""
        return 2 * self._reader.nbytes(self._bounds[unit], self._bounds[unit + 1])

    def one_block(self, unit: int) -> bool:
        return True

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        if part == 0 and self.unit_nbytes(unit):
            yield self._block(unit, buffers)

    def _block(self, unit: int, buffers: Buffers) -> Block:
        """No generator: its frame would keep the stored bytes while the block is used."""
        rows, ends = self._reader.read(self._bounds[unit], self._bounds[unit + 1], buffers)
        if self._layout is not None:
            block = self._layout.block(rows.reshape(-1, self._layout.nbytes), buffers)
        else:
            begins = np.concatenate(([0], ends[:-1]))
            parts = [rows[begin:end] for begin, end in zip(begins, ends, strict=True) if end > begin]
            block = Block.concat([decode_block(part.tobytes()) for part in parts])
        block.origin = lambda row: f"{self.label}, row {row} of unit {unit}"
        return block

    def fingerprint(self) -> str:
        return self.base.fingerprint()

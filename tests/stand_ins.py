"""Small sources whose rows are their own numbers, so that a lost or doubled row is seen at once; memory that is new."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError


class NumberRows:
    """A RowSource: row i is the number i."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.label = f"numbers({rows})"
        self.on_error = OnError()

    def schema(self) -> Schema:
        return Schema((Field("value", np.dtype(np.int64)),), "value")

    def num_rows(self) -> int:
        return self._rows

    def fetch_nbytes(self, rows: int) -> int:
        return 8 * rows

    def fetch(self, rows: np.ndarray) -> Any:
        return rows

    def decode(self, fetched: Any, buffers: Buffers = NEW_MEMORY) -> Block:
        return Block({"value": fetched.copy()}, "value", lambda i: f"number {fetched[i]}")

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        out["value"][:] = fetched

    def fingerprint(self) -> str:
        return self.label


def _number(first: int, row: int) -> str:
    return f"number {first + row}"


class NumberUnits:
    """A UnitSource: units of uneven sizes, cut into parts of at most `part_rows`."""

    def __init__(self, sizes: tuple[int, ...], part_rows: int = 1000) -> None:
        self.sizes, self.part_rows = sizes, part_rows
        self.label = f"units({len(sizes)})"
        self.on_error = OnError()
        self.opened: list[tuple[int, int]] = []

    def schema(self) -> Schema:
        return Schema((Field("value", np.dtype(np.int64)),), "value")

    def num_units(self) -> int:
        return len(self.sizes)

    def num_rows(self) -> int | None:
        return sum(self.sizes)

    def unit_nbytes(self, unit: int) -> int:
        return 8 * min(self.part_rows, self.sizes[unit])

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        self.opened.append((unit, part))
        start = sum(self.sizes[:unit])
        end = start + self.sizes[unit]
        for first in range(start + part * self.part_rows, end, self.part_rows):
            values = np.arange(first, min(first + self.part_rows, end))
            yield Block({"value": values}, "value", partial(_number, first))

    def fingerprint(self) -> str:
        return f"{self.label}{self.sizes}{self.part_rows}"


class NumberPieces(NumberUnits):
    """A UnitSource that can also read scattered pieces: `piece_rows` neighbouring numbers each."""

    def __init__(self, count: int, piece_rows: int = 3, per_block: int = 4, unit_rows: int = 50) -> None:
        super().__init__((unit_rows,) * (count // unit_rows) + (count % unit_rows,), unit_rows)
        self.count, self.piece_rows, self.per_block = count, piece_rows, per_block
        self.label = f"pieces({count})"

    def num_pieces(self) -> int:
        return -(-self.count // self.piece_rows)

    def pieces_per_block(self) -> int:
        return self.per_block

    def pieces_nbytes(self, count: int) -> int:
        return 8 * count * self.piece_rows

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        values = (pieces[:, None] * self.piece_rows + np.arange(self.piece_rows)).reshape(-1)
        return Block({"value": values[values < self.count]}, "value")


def fresh_pages(nbytes: int) -> mmap.mmap:
    """Filled pages that the process did not have: malloc may have kept some that tests before this one freed."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(pages, np.uint8)[:] = 1
    return pages

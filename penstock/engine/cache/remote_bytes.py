"""A source whose remote bytes are kept in a folder, undecoded.

Covers: putting a source's remote reads by way of a cache folder, its own and no other's.
Does not cover: pages and whole files (pages.py), prepared samples (rows.py, unit_store.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import cached_by
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, PieceSource, RowSource, Source, UnitSource, decoded_nbytes
from penstock.core.wrapped_source import Wrapped, WrappedRows, WrappedUnits, closing
from penstock.engine.cache.pages import Pages, held_nbytes

S = TypeVar("S", bound=Source)


def kept_bytes(source: Source, folder: str, limit: int | None) -> Source:
    """The source, reading by way of the folder; its `close` lets go of the folder."""
    pages = Pages(folder, limit)
    # A copy has open files of its own: another chain over the same source may keep its bytes elsewhere.
    mine: Source = copy.copy(source)
    return KeptRows(mine, pages) if isinstance(mine, RowSource) else KeptUnits(mine, pages)


class _Kept(Wrapped[S]):
    remote = False  # what is read from here on is in the folder

    def __init__(self, source: S, pages: Pages) -> None:
        super().__init__(source)
        self._pages = pages

    @property
    def label(self) -> str:
        return f"kept bytes of {self.source.label}"

    def schema(self) -> Schema:
        with cached_by(self._pages):
            return self.source.schema()

    def fingerprint(self) -> str:
        with cached_by(self._pages):
            return self.source.fingerprint()

    def close(self) -> None:
        """Let go of the folder; what is kept stays."""
        self._pages.close()


class KeptRows(_Kept[RowSource], WrappedRows):
    """A `RowSource`."""

    def num_rows(self) -> int:
        with cached_by(self._pages):
            return self.source.num_rows()

    def fetch_nbytes(self, rows: int) -> int:
        with cached_by(self._pages):
            nbytes = self.source.fetch_nbytes(rows)
        return nbytes + held_nbytes(nbytes, rows)

    def fetch(self, rows: np.ndarray) -> Any:
        with cached_by(self._pages):
            return self.source.fetch(rows)

    def decode(self, fetched: Any, buffers: Buffers = NEW_MEMORY) -> Block:
        with cached_by(self._pages):
            return self.source.decode(fetched, buffers)

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        with cached_by(self._pages):
            self.source.decode_into(fetched, out, buffers)


class KeptUnits(_Kept[UnitSource], WrappedUnits):
    """A `UnitSource`."""

    def num_units(self) -> int:
        with cached_by(self._pages):
            return self.source.num_units()

    def num_rows(self) -> int | None:
        with cached_by(self._pages):
            return self.source.num_rows()

    def unit_nbytes(self, unit: int) -> int:
        with cached_by(self._pages):
            nbytes = self.source.unit_nbytes(unit)
        return nbytes + held_nbytes(nbytes)

    def decoded_nbytes(self) -> int:
        with cached_by(self._pages):
            return decoded_nbytes(self.source)

    def num_pieces(self) -> int:
        """As many as the source has: kept bytes change no order."""
        with cached_by(self._pages):
            return self.source.num_pieces() if isinstance(self.source, PieceSource) else 0

    def pieces_per_block(self) -> int:
        assert isinstance(self.source, PieceSource)
        with cached_by(self._pages):
            return self.source.pieces_per_block()

    def pieces_nbytes(self, count: int) -> int:
        assert isinstance(self.source, PieceSource)
        with cached_by(self._pages):
            nbytes = self.source.pieces_nbytes(count)
        return nbytes + held_nbytes(nbytes, count)

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        assert isinstance(self.source, PieceSource)
        with cached_by(self._pages):
            return self.source.read_pieces(pieces, buffers)

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's blocks. The thread may do other reads in between, so each block is read separately."""
        with cached_by(self._pages):
            blocks = iter(self.source.open(unit, part, buffers))
        return closing(blocks, self._each)

    def _each(self, blocks: Iterator[Block]) -> Iterator[Block]:
        while True:
            with cached_by(self._pages):
                block = next(blocks, None)
            if block is None:
                return
            yield block
            del block

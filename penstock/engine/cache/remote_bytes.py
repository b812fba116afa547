"""A source whose remote bytes are kept in a folder, undecoded.

Covers: a source that reads its remote files through a cache folder, its own and no other's; the memory this takes.
Does not cover: pages and whole files (pages.py), prepared samples (rows.py, unit_store.py), handing the cache down to
each read (core/byte_cache.py).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import ReadsThrough
from penstock.core.source import NEW_MEMORY, Buffers, PieceSource, RowSource, Source, UnitSource
from penstock.core.wrapped_source import Wrapped, WrappedRows, WrappedUnits
from penstock.engine.cache.pages import Pages, held_nbytes

S = TypeVar("S", bound=Source)


def kept_bytes(source: Source, folder: str, limit: int | None) -> Source:
    """The source, reading by way of the folder; its `close` lets go of the folder."""
    assert isinstance(source, ReadsThrough), f"{source.label} has remote files and no way through a cache"
    pages = Pages(folder, limit)
    # Another chain over the same source may keep its bytes elsewhere.
    mine: Source = source.through(pages)
    return KeptRows(mine, pages) if isinstance(mine, RowSource) else KeptUnits(mine, pages)


class _Kept(Wrapped[S]):
    remote = False  # what is read from here on is in the folder

    def __init__(self, source: S, pages: Pages) -> None:
        super().__init__(source)
        self._pages = pages

    @property
    def label(self) -> str:
        return f"kept bytes of {self.source.label}"

    def close(self) -> None:
        """Let go of the folder; what is kept stays."""
        self._pages.close()


class KeptRows(_Kept[RowSource], WrappedRows):
    """A `RowSource`."""

    def fetch_nbytes(self, rows: int) -> int:
        nbytes = self.source.fetch_nbytes(rows)
        return nbytes + held_nbytes(nbytes, rows)


class KeptUnits(_Kept[UnitSource], WrappedUnits):
    """A `UnitSource`."""

    def unit_nbytes(self, unit: int) -> int:
        nbytes = self.source.unit_nbytes(unit)
        return nbytes + held_nbytes(nbytes)

    def num_pieces(self) -> int:
        """As many as the source has: kept bytes change no order."""
        return self.source.num_pieces() if isinstance(self.source, PieceSource) else 0

    def pieces_per_block(self) -> int:
        assert isinstance(self.source, PieceSource)
        return self.source.pieces_per_block()

    def pieces_nbytes(self, count: int) -> int:
        assert isinstance(self.source, PieceSource)
        nbytes = self.source.pieces_nbytes(count)
        return nbytes + held_nbytes(nbytes, count)

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        assert isinstance(self.source, PieceSource)
        return self.source.read_pieces(pieces, buffers)

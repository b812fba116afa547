"""A source whose remote bytes are kept in a folder, undecoded.

Covers: putting a source's remote reads by way of a cache folder, its own and no other's.
Does not cover: pages and whole files (engine/cache_pages.py), prepared samples (engine/cache_rows.py, cache_units.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.core.block import Block
from penstock.core.keeping import kept_by
from penstock.core.schema import Schema
from penstock.core.source import OnError, RowSource, Source, UnitSource
from penstock.engine.cache_pages import Pages, held_nbytes

S = TypeVar("S", bound=Source)


def kept_bytes(source: Source, folder: str, limit: int | None) -> Source:
    """The source, reading by way of the folder; its `close` lets go of the folder."""
    pages = Pages(folder, limit)
    # A copy has open files of its own: another chain over the same source may keep its bytes elsewhere.
    mine: Source = copy.copy(source)
    return KeptRows(mine, pages) if isinstance(mine, RowSource) else KeptUnits(mine, pages)


class _Kept(Generic[S]):
    def __init__(self, source: S, pages: Pages) -> None:
        self._source, self._pages = source, pages
        self.label = f"kept bytes of {source.label}"

    @property
    def on_error(self) -> OnError:
        return self._source.on_error

    def schema(self) -> Schema:
        with kept_by(self._pages):
            return self._source.schema()

    def fingerprint(self) -> str:
        with kept_by(self._pages):
            return self._source.fingerprint()

    def close(self) -> None:
        """Let go of the folder; what is kept stays."""
        self._pages.close()


class KeptRows(_Kept[RowSource]):
    """A `RowSource`."""

    def num_rows(self) -> int:
        with kept_by(self._pages):
            return self._source.num_rows()

    def fetch_nbytes(self, rows: int) -> int:
        with kept_by(self._pages):
            nbytes = self._source.fetch_nbytes(rows)
        return nbytes + held_nbytes(nbytes, rows)

    def fetch(self, rows: np.ndarray) -> Any:
        with kept_by(self._pages):
            return self._source.fetch(rows)

    def decode(self, fetched: Any) -> Block:
        with kept_by(self._pages):
            return self._source.decode(fetched)

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray]) -> None:
        with kept_by(self._pages):
            self._source.decode_into(fetched, out)


class KeptUnits(_Kept[UnitSource]):
    """A `UnitSource`."""

    def num_units(self) -> int:
        with kept_by(self._pages):
            return self._source.num_units()

    def num_rows(self) -> int | None:
        with kept_by(self._pages):
            return self._source.num_rows()

    def unit_nbytes(self, unit: int) -> int:
        with kept_by(self._pages):
            nbytes = self._source.unit_nbytes(unit)
        return nbytes + held_nbytes(nbytes)

    def open(self, unit: int, part: int = 0) -> Iterator[Block]:
        """The unit's blocks. Whoever takes one may have other reads to do in between, so each is had on its own."""
        with kept_by(self._pages):
            blocks = iter(self._source.open(unit, part))
        try:
            while True:
                with kept_by(self._pages):
                    block = next(blocks, None)
                if block is None:
                    return
                yield block
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()

"""A source that wraps another one: what it does not change is forwarded.

Covers: forwarding the whole protocol of `core/source.py`, optional parts (`remote`, `classes`, `one_block`) included.
Does not cover: what a wrapper changes: those override one or two methods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import ByteCache, ReadsThrough
from penstock.core.schema import Schema
from penstock.core.source import (
    NEW_MEMORY,
    Buffers,
    OnError,
    RowSource,
    Source,
    TellsLastBlock,
    UnitSource,
    decoded_nbytes,
)

S = TypeVar("S", bound=Source)


class Wrapped(Generic[S]):
    """What both kinds of sources have."""

    def __init__(self, source: S) -> None:
        self.source = source

    @property
    def label(self) -> str:
        return self.source.label

    @property
    def on_error(self) -> OnError:
        return self.source.on_error

    @property
    def remote(self) -> bool:
        """Whether some files have to be fetched from a store."""
        return bool(getattr(self.source, "remote", False))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where the source has them."""
        return getattr(self.source, "classes", None)

    def through(self, cache: ByteCache) -> Self:
        """The same wrapper over the source as it is read through a cache."""
        other = copy.copy(self)
        if isinstance(self.source, ReadsThrough):
            other.source = self.source.through(cache)
        return other

    def schema(self) -> Schema:
        return self.source.schema()

    def fingerprint(self) -> str:
        return self.source.fingerprint()


class WrappedRows(Wrapped[RowSource]):
    """A `RowSource` over another."""

    def num_rows(self) -> int:
        return self.source.num_rows()

    def fetch_nbytes(self, rows: int) -> int:
        return self.source.fetch_nbytes(rows)

    def fetch(self, rows: np.ndarray) -> Any:
        return self.source.fetch(rows)

    def decode(self, fetched: Any, buffers: Buffers = NEW_MEMORY) -> Block:
        return self.source.decode(fetched, buffers)

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        self.source.decode_into(fetched, out, buffers)


class WrappedUnits(Wrapped[UnitSource]):
    """A `UnitSource` over another."""

    def num_units(self) -> int:
        return self.source.num_units()

    def num_rows(self) -> int | None:
        return self.source.num_rows()

    def unit_nbytes(self, unit: int) -> int:
        return self.source.unit_nbytes(unit)

    def decoded_nbytes(self) -> int:
        """Bytes of all rows, as far as the source knows."""
        return decoded_nbytes(self.source)

    def one_block(self, unit: int) -> bool:
        """Whether it is known that nothing comes after the first block of a unit."""
        return isinstance(self.source, TellsLastBlock) and self.source.one_block(unit)

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        return self.source.open(unit, part, buffers)


def closing(blocks: Iterator[Block], through: Callable[[Iterator[Block]], Iterator[Block]]) -> Iterator[Block]:
    """What `through` makes of a unit's blocks. Closing this iterator closes the unit's own."""
    try:
        yield from through(blocks)
    finally:
        close = getattr(blocks, "close", None)
        if close is not None:
            close()

"""Rows that Ray Data prepares, on whatever machines it runs.

Covers: `RaySource`: one stream of blocks of equal numbers of rows, and columns of tensors.
Does not cover: how columns become samples (tables/blocks.py), what Ray does, and in which memory: its object store has
a limit of its own.

A stream of Ray Data begins at its start. Resuming at block n runs it again and drops what comes before; that these are
the same rows needs Ray to keep their order, which it is told to do.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.core.block import Block
from penstock.core.errors import DataError, PenstockError
from penstock.core.schema import Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.sources.tables.blocks import TableShape

_LOOKED_AT = 64
"""Rows that tell the columns and the size of a row."""
_MOST_ROWS = 65_536


class RaySource:
    """What a `ray.data.Dataset` streams, as one unit."""

    def __init__(self, dataset: Any, shape: TableShape, on_error: OnError) -> None:
        dataset.context.execution_options.preserve_order = True
        # What comes later is not known, so that a whole number never turns into a float halfway.
        self._dataset, self._shape = dataset, dataclasses.replace(shape, nullable=frozenset())
        self._on_error = on_error

    @property
    def label(self) -> str:
        return "ray.data"

    @property
    def on_error(self) -> OnError:
        return self._on_error

    def schema(self) -> Schema:
        return self._shape.schema(self._first.schema, self.label)

    @cached_property
    def _first(self) -> pa.Table:
        """The first rows, for which Ray runs as little as it can."""
        for table in self._tables(self._dataset.limit(_LOOKED_AT), _LOOKED_AT):
            return table
        raise DataError(f"{self.label}: the dataset has no rows, so its columns are unknown.")

    @cached_property
    def _block_rows(self) -> int:
        return max(1, min(_MOST_ROWS, BLOCK_NBYTES // self._row_nbytes))

    @property
    def _row_nbytes(self) -> int:
        return max(1, int(self._first.nbytes) // max(1, int(self._first.num_rows)))

    def num_units(self) -> int:
        return 1

    def num_rows(self) -> int | None:
        return None

    def unit_nbytes(self, unit: int) -> int:
        """The batch that Ray hands over, the one it makes ready, and the block made of it."""
        return 3 * max(BLOCK_NBYTES, self._row_nbytes)

    def fingerprint(self) -> str:
        """Ray's plans cannot be compared: columns have to do."""
        return hashlib.sha256(repr((str(self._first.schema), str(self.schema()))).encode()).hexdigest()[:32]

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """Blocks of equal numbers of rows; the first `part` are streamed and dropped."""
        rows, first = self._block_rows, self._first.schema
        tables = self._tables(self._dataset, rows)
        numbered = ((number * rows, table) for number, table in enumerate(tables))
        try:
            yield from blocks_from(numbered, part, lambda found: self._block(found[1], first, found[0], buffers))
        finally:
            tables.close()

    def _block(self, table: pa.Table, first: pa.Schema, start: int, buffers: Buffers) -> Block:
        if table.schema.names != first.names:
            raise DataError(f"{self.label}: columns {table.schema.names} come after {first.names}.")
        try:
            table = table.cast(first)  # Ray makes each block by itself: a column may be int32 in one of them
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise DataError(f"{self.label}, rows from {start} on: {error}. The first rows are {first}.") from error
        return self._shape.block(table, lambda i: f"{self.label}, row {start + i}", self._on_error, buffers)

    def _tables(self, dataset: Any, rows: int) -> Generator[pa.Table, None, None]:
        batches = iter(dataset.iter_batches(batch_size=rows, batch_format="pyarrow", prefetch_batches=1))
        try:
            for batch in batches:
                yield _without_tensors(batch)
        except PenstockError:
            raise
        except Exception as error:  # of the user's functions, wherever they ran, and of Ray itself
            raise DataError(f"{self.label}: {type(error).__name__}: {error}") from error
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def _without_tensors(table: pa.Table) -> pa.Table:
    """Ray's own columns of tensors as fixed-size lists, which the rest of the world knows."""
    for place, field in enumerate(table.schema):
        shape = getattr(field.type, "shape", None)
        if isinstance(field.type, pa.ExtensionType) and shape is not None:
            chunks = [_fixed_lists(chunk, tuple(shape)) for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(chunks))
    return table


def _fixed_lists(tensors: pa.ExtensionArray, shape: tuple[int, ...]) -> pa.Array:
    """(rows, *shape) as lists of lists; `flatten` heeds the array's offset."""
    values = tensors.storage.flatten()
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values

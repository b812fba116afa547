"""Parquet files: a unit is a row group, several small ones, or a giant one in slices.

Covers: `ParquetSource`: footers read once and kept packed, projection, filters, giant and tiny row groups, damage.
Does not cover: how columns become samples (sources/tables/blocks.py), keeping files open (readers.py).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.arrow_numbers import arrow_of, numbers
from penstock.core.block import Block, Origin
from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, InvalidInput, PenstockError, SchemaChanged
from penstock.core.schema import Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError
from penstock.memory.giant import most_nbytes
from penstock.sources.from_files import PathSource, name_of
from penstock.sources.parquet.footer import group_sizes, largest_page
from penstock.sources.parquet.int96 import require_nanoseconds
from penstock.sources.parquet.readers import Readers
from penstock.sources.parquet.survey import Survey, opened, survey
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote
from penstock.sources.storage.unchanged import Unchanged
from penstock.sources.tables.blocks import TableShape, one_batch

STREAM_NBYTES = 1 << 20
"""Buffer for each column of a row group that is read in slices."""

REMOTE_PAGES = 8
"""Headers of pages that are looked at in each column of a remote file: a request each, one after the other. Pages that
matter here are so large that a column has few of them."""

BUFFER_NBYTES = 1 << 16
"""Buffer through which a column is read. Without one, a column's stored bytes all lie in memory before the first is
decoded."""

Filters = Any


class ParquetSource(PathSource):
    """Rows of Parquet files."""

    def __init__(
        self,
        paths: Sequence[str],
        shape: TableShape,
        filters: Filters = None,
        on_error: OnError | None = None,
        block_nbytes: int = BLOCK_NBYTES,
    ) -> None:
        super().__init__(paths, name_of("parquet", paths), on_error)
        self.shape, self.block_nbytes = shape, block_nbytes
        self.filters = as_expression(filters)
        self._readers = Readers()
        self._pages: dict[int, int] = {}
        self._times_checked: set[int] = set()
        self._unchanged = Unchanged(len(paths))

    def through(self, cache: ByteCache) -> Self:
        other = super().through(cache)
        other._readers = Readers()
        return other

    @cached_property
    def survey(self) -> Survey:
        """Row groups of all files, as packed numbers, and the schema of the first."""
        for number, path in enumerate(self.paths):
            self._unchanged.check(number, path)
        return survey(self.paths, self.shape, self.filters, self.block_nbytes, self.on_error)

    def schema(self) -> Schema:
        return self.shape_bound.schema(self.survey.arrow, self.paths[0])

    @cached_property
    def shape_bound(self) -> TableShape:
        """The shape, with the integer columns that have missing values known from the footers."""
        return self.survey.shape

    def num_units(self) -> int:
        return len(self.survey.file)

    def num_rows(self) -> int | None:
        return int(self.survey.rows.sum()) if self.filters is None else None

    def unit_nbytes(self, unit: int) -> int:
        """Stored bytes, decoded columns, and the block made of them; a giant row group counts by its slices."""
        found = self.survey
        stored, decoded = int(found.stored[unit]), int(found.decoded[unit])
        if self._sliced(unit):
            columns = len(found.arrow.names if found.columns is None else found.columns)
            # Measured on 20 columns: 59 MB at the peak, page buffers and the column decoders' own included.
            usual = min(stored, columns * STREAM_NBYTES) + 5 * self.block_nbytes
            row = decoded // max(1, int(found.rows[unit]))
            return max(usual, self._pages_nbytes(unit) + 4 * row)
        return stored + 2 * decoded

    def _pages_nbytes(self, unit: int) -> int:
        """The largest page of each column of a giant row group, which lie in memory together; 0 where none is large."""
        if unit not in self._pages:
            try:
                self._check_pages(unit)
            except BadData:  # reported when the unit is read
                return 0
        return self._pages[unit]

    def _check_pages(self, unit: int) -> None:
        """Walk the pages of a giant row group, once. `BadData` if they break the footer's promises."""
        if unit in self._pages:
            return
        path = self.paths[int(self.survey.file[unit])]
        group = group_sizes(path)[int(self.survey.group[unit])]
        named = self.survey.columns
        wanted = [c for c in group.columns if named is None or c.path.split(".")[0] in named]
        few, harmless = REMOTE_PAGES if storage.is_remote(path) else None, most_nbytes()
        pages = (
            remote.in_parallel(lambda column: largest_page(path, column, few, harmless), wanted)
            if few
            else [largest_page(path, column) for column in wanted]
        )
        self._pages[unit] = sum(page for page in pages if page > 2 * STREAM_NBYTES)

    def _check_times(self, unit: int, path: str, groups: list[int]) -> None:
        """Times stored as INT96 are looked at once, before they are read."""
        if self.survey.int96 and unit not in self._times_checked:
            require_nanoseconds(path, lambda: opened(path), groups, self.survey.int96)
            self._times_checked.add(unit)

    def one_block(self, unit: int) -> bool:
        return not self._sliced(unit)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.shape, str(self.filters), self.block_nbytes)).encode())
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()[:32]

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The blocks of a unit: one, or the slices of a giant row group."""
        if not 0 <= unit < self.num_units():
            raise InvalidInput(f"{self.label} has no unit {unit}: there are {self.num_units()}.")
        file, group = int(self.survey.file[unit]), int(self.survey.group[unit])
        groups = list(range(group, group + int(self.survey.count[unit])))
        self._unchanged.check(file, self.paths[file])
        try:
            self._check_times(unit, self.paths[file], groups)
            yield from self._blocks(unit, file, groups, part, buffers)
        except BadData as error:
            self.on_error.bad(error)
        except (PenstockError, MemoryError):
            raise
        except Exception as error:  # Arrow raises what it likes of damaged pages: ValueError, KeyError, Unicode...
            self._unchanged.check(file, self.paths[file])
            named = f"row group {group}" if len(groups) == 1 else f"row groups {group} to {groups[-1]}"
            self.on_error.bad(BadData(f"{self.paths[file]}, {named}", f"cannot be read ({_first_line(error)})"))

    def _blocks(self, unit: int, file: int, groups: list[int], part: int, buffers: Buffers) -> Iterator[Block]:
        if not self._sliced(unit):
            if part == 0:
                made = [self._whole(unit, file, groups, buffers)]
                self._unchanged.check(file, self.paths[file])
                yield made.pop()
            return
        self._check_pages(unit)
        with self._reading(file) as reader:
            rows = self._slice_rows(unit)
            batches = reader.iter_batches(
                batch_size=rows, row_groups=groups, columns=self.survey.columns, use_threads=False
            )
            at = 0
            for number, batch in enumerate(batches):
                if number >= part:
                    self._unchanged.check(file, self.paths[file])
                    origin = self._origin(file, groups[0], at)
                    yield self._shaped(pa.Table.from_batches([batch]), origin, buffers)
                at += batch.num_rows

    def _whole(self, unit: int, file: int, groups: list[int], buffers: Buffers) -> Block:
        """Row groups as one block. No generator: its frame would keep Arrow's columns while the block is used."""
        origin = self._origin(file, groups[0], 0)
        with self._reading(file) as reader:
            if self.filters is None and not storage.is_remote(self.paths[file]):
                rows = int(self.survey.rows[unit])

                def read(names: Sequence[str]) -> pa.RecordBatch:
                    table = reader.read_row_groups(groups, columns=list(names), use_threads=False)
                    if table.num_rows != rows:
                        raise pa.ArrowInvalid(f"{table.num_rows} rows where the footer says {rows}")
                    return one_batch(table, origin)

                arrow = self.survey.arrow
                return self.shape_bound.block_by_parts(arrow, rows, read, origin, self.on_error, buffers)
            table = reader.read_row_groups(groups, columns=self.survey.columns, use_threads=False)
        return self._shaped(table, origin, buffers)

    def _shaped(self, table: pa.Table, origin: Origin, buffers: Buffers) -> Block:
        names = self.survey.arrow.names if self.survey.columns is None else self.survey.columns
        if table.column_names != names:  # a file may hold its columns in another order than the first
            table = table.select(names)
        if self.filters is None:
            return self.shape_bound.block(table, origin, self.on_error, buffers)
        numbered = table.append_column("__row__", arrow_of(np.arange(table.num_rows)))
        kept = numbered.filter(self.filters)
        rows = numbers(kept.column("__row__").combine_chunks())
        return self.shape_bound.block(
            kept.drop_columns(["__row__"]),
            lambda i: origin(int(rows[i]) if i < len(rows) else 0),
            self.on_error,
            buffers,
        )

    def _origin(self, file: int, group: int, start: int) -> Origin:
        path = self.paths[file]
        return lambda row: f"{path}, row group {group}, row {start + row}"

    def _sliced(self, unit: int) -> bool:
        return int(self.survey.decoded[unit]) > 4 * self.block_nbytes

    def _slice_rows(self, unit: int) -> int:
        rows, decoded = int(self.survey.rows[unit]), int(self.survey.decoded[unit])
        return max(1, int(rows * self.block_nbytes / max(1, decoded)))

    def _reading(self, file: int) -> AbstractContextManager[pq.ParquetFile]:
        keep = not storage.is_remote(self.paths[file])
        return self._readers.use(file, lambda: self._open_reader(file), keep=keep)

    def _open_reader(self, file: int) -> pq.ParquetFile:
        path = self.paths[file]
        # Ranges fetched ahead hide the latency of remote storage. A reader keeps the last of them, and reading a giant
        # row group ahead of its slices would hold all of it.
        ahead = storage.is_remote(path) and not self.survey.giant
        buffer = STREAM_NBYTES if self.survey.giant else 0 if ahead else BUFFER_NBYTES
        reader = pq.ParquetFile(opened(path), pre_buffer=ahead, buffer_size=buffer)
        self._check(reader.schema_arrow, path)
        return reader

    def _check(self, arrow: pa.Schema, path: str) -> None:
        require_same(self.survey.arrow, arrow, self.survey.columns, self.paths[0], path)


def require_same(first: pa.Schema, other: pa.Schema, columns: Sequence[str] | None, first_path: str, path: str) -> None:
    """Raise SchemaChanged unless a file has the columns that are read, with the types of the first file.

    Their order does not matter; columns that the first file lacks do, unless it was said which are read.
    """
    if columns is None and len(other.names) > len(first.names):
        more = next(iter(Counter(other.names) - Counter(first.names)))
        raise SchemaChanged(
            f"{path} has a column {more!r}, which {first_path} has not. Name those to read with columns= or features=."
        )
    for name in first.names if columns is None else columns:
        name = name.split(".")[0] if name not in first.names else name
        if name not in other.names:
            raise SchemaChanged(f"{path} has no column {name!r}, which {first_path} has.")
        left, right = first.field(name).type, other.field(name).type
        if left != right and stored_type(left) != stored_type(right):
            raise SchemaChanged(f"Column {name!r} is {right} in {path} but {left} in {first_path}.")


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type without logical names (UUID, JSON), which one way of asking Arrow tells and another does not."""
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(inner.name, stored_type(inner.type)) for inner in kind])
    return kind


def as_expression(filters: Filters) -> pc.Expression | None:
    """A filter from an expression or from PyArrow's lists of (column, operator, value)."""
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"filters= must be an expression or a list such as [('column', '>', 3)], not {filters!r} ({error})."
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

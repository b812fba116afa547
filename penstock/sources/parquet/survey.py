"""What the footers of Parquet files say, in a few packed numbers per unit.

Covers: units (row groups, or runs of tiny ones), their rows and bytes, skipping groups by statistics, missing values.
Does not cover: reading rows (parquet.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.arrow_numbers import no_rows
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.source import OnError
from penstock.sources.parquet.footer import GroupSizes, group_sizes
from penstock.sources.parquet.int96 import int96_columns
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import TableShape

SMALL_NBYTES = 1_000_000
"""Row groups below this are read several at a time."""

JOINED_FILES = 4096
"""Files after which their units are joined into one array: an array for each of a million files would be 100 MB."""


_UNFIT = (pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""What Arrow says when a filter compares a column with something that is not of its type."""


@dataclass(frozen=True)
class Survey:
    """One entry per unit: its file, first row group, number of groups, rows, stored and decoded bytes."""

    arrow: pa.Schema
    shape: TableShape
    columns: list[str] | None
    file: np.ndarray
    group: np.ndarray
    count: np.ndarray
    rows: np.ndarray
    stored: np.ndarray
    decoded: np.ndarray
    giant: bool
    int96: list[str]
    """Columns that hold times as INT96 in some file."""


def survey(
    paths: Sequence[str], shape: TableShape, filters: pc.Expression | None, block_nbytes: int, on_error: OnError
) -> Survey:
    """Read every footer once. A file without a readable footer is damaged data."""
    units: list[np.ndarray] = []
    first: pa.Schema | None = None
    columns: list[str] | None = None
    nulls: set[str] = set()
    int96: dict[str, None] = {}
    for number, path in enumerate(paths):
        footer = _footer(path, on_error)
        if footer is None:
            continue
        if first is None:
            first = footer.schema.to_arrow_schema()
            columns = wanted_columns(shape, filters, first, path)
        groups = _matching(path, filters) if filters is not None else range(footer.num_row_groups)
        wanted = _leaf_numbers(footer, columns)
        int96.update(dict.fromkeys(int96_columns(footer.schema, columns)))
        sizes = _sizes(path, footer, on_error)
        if sizes is None:
            continue
        optional = [footer.schema.column(i).max_definition_level > 0 for i in range(footer.num_columns)]
        table = np.array([_facts(sizes[g], g, wanted, optional, nulls) for g in groups], np.int64).reshape(-1, 4)
        units.append(_joined(table, number, block_nbytes))
        if len(units) == JOINED_FILES:
            units = [np.concatenate(units)]
    if first is None:
        raise BadData(paths[0], "no file has a readable Parquet footer")
    packed = np.concatenate(units) if units else np.empty((0, 6), np.int64)
    file, group, count, rows, stored, decoded = (np.ascontiguousarray(packed[:, i]) for i in range(6))
    nullable = frozenset(nulls) if shape.nullable is None else shape.nullable
    bound = replace(shape, nullable=nullable, check_text=True)
    bound.schema(first, paths[0])  # a missing column is reported before anything is read
    decoded = np.maximum(decoded, rows * _fixed_nbytes(first, columns))
    giant = bool((decoded > 4 * block_nbytes).any())
    return Survey(first, bound, columns, file, group, count, rows, stored, decoded, giant, list(int96))


def opened(path: str) -> Any:
    """A file as Arrow wants it: local ones by themselves, so that reading releases the GIL."""
    return pa.PythonFile(storage.open_file(path)) if storage.is_remote(path) else pa.OSFile(storage.local_path(path))


def _footer(path: str, on_error: OnError) -> Any:
    try:
        with opened(path) as source:
            return pq.read_metadata(source)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a message may quote what is no text
        if isinstance(error, (NotFound, FileNotFoundError, PermissionError)):
            raise
        on_error.bad(BadData(path, f"is not a readable Parquet file ({str(error).splitlines()[0]})"))
        return None


def wanted_columns(shape: TableShape, filters: pc.Expression | None, arrow: pa.Schema, path: str) -> list[str] | None:
    """The columns to read: those of the samples, and those that filters look at."""
    needed = shape.columns_needed
    shape.specs(arrow, path)  # names a missing column, the file and what is there
    there = Counter(arrow.names)
    twice = next((name for name in needed or there if there[name] > 1), None)
    if twice is not None:
        raise BadData(path, f"has several columns named {twice!r}. Name the others with columns= or features=")
    if needed is None or filters is None:
        return needed
    # Arrow does not list an expression's fields: a field that it needs is one without which it cannot be bound.
    used = [name for name in arrow.names if name not in needed and _depends(filters, arrow, name)]
    return [*needed, *used]


def _depends(filters: pc.Expression, arrow: pa.Schema, name: str) -> bool:
    rest = no_rows(pa.schema([field for field in arrow if field.name != name]))
    try:
        rest.filter(filters)
    except (pa.ArrowInvalid, *_UNFIT):
        return True
    return False


def _matching(path: str, filters: pc.Expression) -> list[int]:
    """Row groups whose statistics do not rule the filter out."""
    try:
        import pyarrow.dataset as pads  # brings pandas along where that is installed: only for filters

        whole = pads.ParquetFileFormat().make_fragment(opened(path))
        return [info.id for part in whole.split_by_row_group(filters) for info in part.row_groups]
    except _UNFIT as error:
        raise InvalidInput(f"filters= do not fit the columns of {path}: {str(error).splitlines()[0]}.") from error
    except pa.ArrowInvalid as error:
        raise NotFound(f"filters= cannot be used on {path}: {str(error).splitlines()[0]}") from error


def _leaf_numbers(footer: Any, columns: Sequence[str] | None) -> list[int]:
    """Positions of the stored columns that are read (a nested column has several)."""
    names = [footer.schema.column(i).path.split(".")[0] for i in range(footer.num_columns)]
    return [i for i, name in enumerate(names) if columns is None or name in columns]


def _sizes(path: str, footer: Any, on_error: OnError) -> list[GroupSizes] | None:
    """Sizes of the row groups, not asked of PyArrow: a damaged entry would end the process there."""
    try:
        found = group_sizes(path)
        if [len(group.columns) for group in found] != [footer.num_columns] * footer.num_row_groups:
            raise BadData(path, "its Parquet footer contradicts itself")
        return found
    except BadData as error:
        on_error.bad(error)
        return None


def _facts(
    info: GroupSizes, group: int, wanted: Sequence[int], optional: Sequence[bool], nulls: set[str]
) -> tuple[int, int, int, int]:
    """Group number, rows, stored and decoded bytes; notes the columns in which values are missing."""
    stored = decoded = 0
    for i in wanted:
        column = info.columns[i]
        stored += column.stored
        decoded += column.decoded
        # Without statistics nobody knows: integers stay integers, and a value that is missing after all is reported.
        if optional[i] and column.nulls:
            nulls.add(column.path)
    return group, info.rows, stored, decoded


def _joined(table: np.ndarray, file: int, block_nbytes: int) -> np.ndarray:
    """Units of a file: neighbouring tiny row groups are read together, up to a block."""
    return np.array([(file, *unit) for unit in _runs(table, block_nbytes)], np.int64).reshape(-1, 6)


def _runs(table: np.ndarray, block_nbytes: int) -> Iterator[tuple[int, int, int, int, int]]:
    start, count, rows, stored, decoded = -1, 0, 0, 0, 0
    for number, nrows, packed, plain in table.tolist():
        joins = start + count == number and plain < SMALL_NBYTES and decoded + plain <= block_nbytes
        if count and not joins:
            yield start, count, rows, stored, decoded
            count = 0
        if not count:
            start, rows, stored, decoded = number, 0, 0, 0
        count, rows, stored, decoded = count + 1, rows + nrows, stored + packed, decoded + plain
        if plain >= SMALL_NBYTES:
            yield start, count, rows, stored, decoded
            count = 0
    if count:
        yield start, count, rows, stored, decoded


def _fixed_nbytes(arrow: pa.Schema, columns: Sequence[str] | None) -> int:
    """Bytes of a row's fixed columns: stored dictionaries hide how large the values are once decoded."""
    kinds = [field.type for field in arrow if columns is None or field.name in columns]
    return sum(max(1, kind.bit_width // 8) if pt.is_primitive(kind) else 8 for kind in kinds)

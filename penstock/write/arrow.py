"""Columns as Arrow holds them.

Covers: numbers, text, bytes, arrays of fixed and of changing length, without a Python object per number.
Does not cover: writing Parquet (formats.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.block import Column
from penstock.core.errors import DataError
from penstock.core.schema import OBJECT


def arrow_table(columns: Mapping[str, Column]) -> pa.Table:
    """The columns as a table, in the types that they have by themselves."""
    try:
        return pa.table({name: arrow_column(column) for name, column in columns.items()})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _unfit(error) from error


def joined(tables: Sequence[pa.Table], schema: pa.Schema | None) -> pa.Table:
    """Tables as one: in the types of `schema`, or in such that hold all of them (nothing and text are text)."""
    try:
        if schema is None:
            return pa.concat_tables(_same_lists(tables), promote_options="permissive")
        return pa.concat_tables([t if t.schema.equals(schema) else t.cast(schema) for t in tables])
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise _unfit(error) from error


def _same_lists(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """A column that has lists of one length in one table and of several in another has lists in all."""
    changing = {f.name: f.type for table in tables for f in table.schema if pa.types.is_list(f.type)}
    out = []
    for table in tables:
        for index, field in enumerate(table.schema):
            if field.name in changing and pa.types.is_fixed_size_list(field.type):
                column = table[field.name].cast(changing[field.name])
                table = table.set_column(index, pa.field(field.name, column.type), column)
        out.append(table)
    return out


def _unfit(error: Exception) -> DataError:
    return DataError(f"Samples do not fit one Parquet schema: {error}")


def arrow_column(column: Column) -> pa.Array:
    """One column. Arrays become lists of fixed size; where their lengths differ, lists."""
    if isinstance(column, pa.Array):
        return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if column.dtype == OBJECT:
        return _objects(column)
    if column.ndim == 1:
        return pa.array(column)
    flat = pa.array(np.ascontiguousarray(column).reshape(-1))
    for length in reversed(column.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, length)
    return flat


def _objects(column: np.ndarray) -> pa.Array:
    """Text and bytes as they are, arrays as lists."""
    if column.ndim > 1:
        return pa.array([row.tolist() for row in column])
    first = next((value for value in column if value is not None), None)
    if not isinstance(first, np.ndarray) or first.ndim == 0:
        return pa.array([value.item() if isinstance(value, np.ndarray) else value for value in column])
    if first.ndim == 1 and first.dtype != OBJECT and all(_alike(value, first) for value in column):
        ends = np.cumsum([0, *map(len, column)])
        kind: Any = pa.LargeListArray if ends[-1] >= 1 << 31 else pa.ListArray
        starts = pa.array(ends, pa.int64() if kind is pa.LargeListArray else pa.int32())
        return kind.from_arrays(starts, pa.array(np.concatenate(list(column))))
    return pa.array([None if value is None else value.tolist() for value in column])


def _alike(value: Any, first: np.ndarray) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == first.dtype

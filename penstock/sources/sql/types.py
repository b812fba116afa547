"""A column's type, decided once for the whole query.

Covers: which columns may have missing values, and holding every block to the types of the first rows.
Does not cover: what the types become in a batch (tables/column.py).

SQLite has a type for each value, so that each range of a query may come as another one. And an integer column that had
missing values in some blocks only would be integers in one batch and floats in the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.errors import BadData, DataError, InvalidInput

LONG = r"^-?[0-9]{16,}(\.0*)?$"
"""Whole numbers that float64 may round, as PostgreSQL writes its numeric."""


def with_nulls(sample: Iterable[pa.RecordBatch]) -> frozenset[str]:
    """Columns in which a value is missing."""
    return frozenset(
        name for batch in sample for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if column.null_count
    )  # fmt: skip


def require_forms(told: pa.Schema, names: Iterable[str], where: str) -> None:
    """Raise for a wanted column of a type that is the database's own, and has no form in NumPy."""
    for name in names:
        kind = told.field(name).type if name in told.names else pa.null()
        own = kind.type_name if isinstance(kind, pa.OpaqueType) else "interval" if pt.is_interval(kind) else None
        if own is not None:
            raise InvalidInput(
                f"{where}: column {name!r} is of the type {own}, which has no form in NumPy. CAST it in the query, for "
                f"example to text, or leave it out with columns=."
            )


def as_told(rows: pa.RecordBatch, told: pa.Schema, where: str) -> pa.RecordBatch:
    """Rows in the types that the first rows had; `BadData` where a value would not stay what it is."""
    if rows.schema.types == told.types:
        return rows
    columns = [_cast(column, field, where) for column, field in zip(rows.columns, told, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=told.names)


def _cast(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    if column.type == field.type:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), field.type)
    try:
        if {column.type, field.type} <= {pa.int64(), pa.float64()}:
            return pc.cast(column, field.type, safe=True)
        because = ""
    except pa.ArrowInvalid as error:
        because = f" ({str(error)[:120]})"
    raise BadData(
        where,
        f"column {field.name!r} is {field.type} in the first rows of the query but {column.type} further on{because}. "
        f"CAST it in the query",
    )


def refuse_rounded(name: str, value: Decimal) -> None:
    """Raise for a whole number that is read as float64 and would be another one."""
    if value == value.to_integral_value() and Decimal(float(value)) != value:
        raise DataError(
            f"column {name!r} is numeric, which is read as float64, and that would round {str(value)[:60]}. "
            f"CAST it to bigint or text in the query."
        )

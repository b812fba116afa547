"""A block: some rows of a dataset, held by column.

Covers: slicing, taking, joining and measuring rows without touching what they mean.
Does not cover: who pays for the bytes (memory/budget.py), turning blocks into batches (engine/streams/batch.py).

A column is a NumPy array whose first axis is the rows, or an Arrow array for what NumPy holds badly
(text, bytes, lists). Object arrays appear only where a user's function made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_numbers import arrow_of, numbers
from penstock.core.errors import DataError, InvalidInput
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.tree import Tree

Column: TypeAlias = np.ndarray | pa.Array

Origin = Callable[[int], str]


class Block:
    """Rows by column. `origin(i)` says where row i came from, for error messages."""

    __slots__ = ("columns", "nrows", "origin", "tree")

    def __init__(self, columns: Mapping[str, Column], tree: Tree, origin: Origin | None = None) -> None:
        self.columns = dict(columns)
        self.tree = tree
        self.origin = origin
        self.nrows = len(next(iter(self.columns.values()))) if self.columns else 0
        for name, column in self.columns.items():
            if len(column) != self.nrows:
                raise InvalidInput(f"Column {name!r} has {len(column)} rows where the block has {self.nrows}.")

    def __len__(self) -> int:
        return self.nrows

    @property
    def nbytes(self) -> int:
        """Bytes that the rows occupy (an object column is estimated from a few of its values)."""
        return sum(column_nbytes(column) for column in self.columns.values())

    @property
    def schema(self) -> Schema:
        return Schema(tuple(column_field(name, column) for name, column in self.columns.items()), self.tree)

    def where(self, row: int) -> str:
        """The origin of a row, in words."""
        return self.origin(row) if self.origin is not None else f"row {row} of a block"

    def slice(self, start: int, stop: int) -> Block:
        """Rows start..stop, as views."""
        origin = self.origin
        moved = None if origin is None else (lambda i: origin(start + i))
        return Block({n: c[start:stop] for n, c in self.columns.items()}, self.tree, moved)

    def take(self, rows: np.ndarray) -> Block:
        """The given rows, in that order, copied."""
        origin = self.origin
        moved = None if origin is None else (lambda i: origin(int(rows[i])))
        return Block({n: take_column(c, rows) for n, c in self.columns.items()}, self.tree, moved)

    def row(self, index: int) -> dict[str, Any]:
        """One row's leaves: NumPy scalars and arrays, str, bytes."""
        return {name: column_value(column, index) for name, column in self.columns.items()}

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """Rows of all blocks, one after the other. Blocks must agree on columns."""
        blocks = [b for b in blocks if b.nrows] or list(blocks[:1])
        if len(blocks) == 1:
            return blocks[0]
        first = blocks[0]
        for other in blocks[1:]:
            if other.columns.keys() != first.columns.keys():
                raise InvalidInput(f"Blocks differ in columns: {list(first.columns)} and {list(other.columns)}.")
        return Block(
            {name: concat_columns([b.columns[name] for b in blocks]) for name in first.columns},
            first.tree,
            _joined_origin(blocks) if any(b.origin for b in blocks) else None,
        )


def _joined_origin(blocks: Sequence[Block]) -> Origin:
    """Where the rows of joined blocks came from; the blocks' data is not kept for it."""
    ends = np.cumsum([b.nrows for b in blocks])
    origins = [b.origin for b in blocks]

    def origin(row: int) -> str:
        which = int(np.searchsorted(ends, row, side="right"))
        inside, of_block = row - (int(ends[which - 1]) if which else 0), origins[which]
        return of_block(inside) if of_block is not None else f"row {inside} of a block"

    return origin


def column_nbytes(column: Column) -> int:
    """Bytes a column holds. Arrow slices count only their own rows."""
    if isinstance(column, np.ndarray):
        if column.dtype != OBJECT:
            return column.nbytes
        step = max(1, len(column) // 64)
        seen = [value_nbytes(v) for v in column[::step]]
        return column.nbytes + (sum(seen) * len(column) // len(seen) if seen else 0)
    return int(column.nbytes)


def value_nbytes(value: object) -> int:
    """Bytes of one Python value, near enough to budget with."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 112
    if isinstance(value, (bytes, str, bytearray)):
        return len(value) + 56
    return 64


def column_field(name: str, column: Column) -> Field:
    """What a column's rows are."""
    if isinstance(column, np.ndarray):
        if column.dtype != OBJECT:
            return Field(name, column.dtype, column.shape[1:])
        first = next((v for v in column.flat if v is not None), None)
        if isinstance(first, np.ndarray):
            return Field(name, first.dtype, (None,) * first.ndim)
        return Field(name, OBJECT, column.shape[1:], text=isinstance(first, str))
    kind, depth = column.type, 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
    if text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind):
        return Field(name, OBJECT, (None,) * depth, text=text)
    return Field(name, np.dtype(kind.to_pandas_dtype()), (None,) * depth)


def column_value(column: Column, index: int) -> Any:
    """One value of a column."""
    if isinstance(column, np.ndarray):
        return column[index]
    scalar = column[index]
    if _is_list(column.type):
        return None if not scalar.is_valid else _list_value(scalar.values)
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:  # such as a year that Python's dates do not have
        raise DataError(f"A value of type {column.type} has no form in Python: {error}.") from error


def _list_value(values: pa.Array) -> np.ndarray:
    """A list as an array: lists of lists of one length as one array of more dimensions, others as an array each."""
    if _is_list(values.type):
        even = _even_lists(values)
        return as_objects(values) if even is None else even
    if pa.types.is_nested(values.type) or pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return np.array(values.to_pylist(), dtype=object)
    return numbers(values)


def _even_lists(values: pa.Array) -> np.ndarray | None:
    """Lists of numbers that are of one length at every level, as one array. Judged from the outside in, once a level:
    to build what is inside first, and to drop it where a level does not fit, would take 2 ** depth tries."""
    shape = [len(values)]
    while _is_list(values.type):
        lengths = pc.min_max(pc.list_value_length(values))
        if not len(values) or values.null_count or lengths["min"] != lengths["max"]:
            return None
        shape.append(lengths["min"].as_py())
        values = values.flatten()
    return numbers(values).reshape(shape) if pa.types.is_primitive(values.type) else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def take_column(column: Column, rows: np.ndarray) -> Column:
    """The given rows of a column, copied."""
    if isinstance(column, np.ndarray):
        # mode="clip" lets NumPy release the GIL and write without a bounds-checking buffer; rows are ours.
        return np.take(column, rows, axis=0, mode="clip")
    return column.take(arrow_of(rows))


def concat_columns(columns: Sequence[Column]) -> Column:
    """Columns joined along rows. A column that is Arrow in one block and NumPy in another becomes objects."""
    arrays = [c for c in columns if isinstance(c, np.ndarray)]
    arrow = [c for c in columns if isinstance(c, pa.Array)]
    if len(arrays) == len(columns):
        if len({a.shape[1:] for a in arrays}) == 1:
            return np.concatenate(arrays)
        return np.concatenate([as_objects(a) for a in arrays])
    if len(arrow) == len(columns) and len({c.type for c in arrow}) == 1:
        return pa.concat_arrays(arrow)
    return np.concatenate([as_objects(c) for c in columns])


def as_objects(column: Column) -> np.ndarray:
    """A column as a 1-D object array, one value a row."""
    out = np.empty(len(column), dtype=object)
    for i in range(len(column)):
        out[i] = column_value(column, i)
    return out


def to_numpy(column: Column) -> np.ndarray:
    """A column as users see it: numbers as they are, text and bytes as object arrays, lists as arrays of arrays."""
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_nested(column.type):
        return as_objects(column)
    return numbers(column)

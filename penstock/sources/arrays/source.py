"""Arrays as datasets: in memory by reference, or in `.npy`/`.npz` files without loading them.

Covers: `ArraySource`, and turning arrays, lists, data frames and Arrow tables into its columns.
Does not cover: where arrays lie in files (npy.py), the arguments of `read_numpy` (read/arrays.py).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column, column_field, column_nbytes, take_column
from penstock.core.byte_cache import ByteCache
from penstock.core.errors import InvalidInput
from penstock.core.schema import Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree, flatten
from penstock.sources.arrays.npy import JoinedArrays
from penstock.sources.storage import files as storage
from penstock.sources.tables.column import beyond_float64, plain_column, to_column

AnyColumn: TypeAlias = np.ndarray | pa.Array | JoinedArrays
"""A column in memory, or one in files."""


class ArraySource:
    """Rows of arrays with a common first axis. Every row can be fetched for itself."""

    def __init__(
        self, columns: Mapping[str, AnyColumn], tree: Tree, label: str = "arrays", on_error: OnError | None = None
    ) -> None:
        self.columns, self.tree, self._label = dict(columns), tree, label
        self._on_error = on_error if on_error is not None else OnError()
        if not self.columns:
            raise InvalidInput("There is no array to read rows from.")
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise InvalidInput(f"{label}: arrays must have the same number of rows, but {shown}.")
        self._rows = next(iter(lengths.values()))

    def through(self, cache: ByteCache) -> ArraySource:
        """The same source, its remote files read through a cache."""
        other = copy.copy(self)
        other.columns = {
            name: column.through(cache) if isinstance(column, JoinedArrays) else column
            for name, column in self.columns.items()
        }
        return other

    @property
    def remote(self) -> bool:
        held = [column for column in self.columns.values() if isinstance(column, JoinedArrays)]
        return any(storage.any_remote(column.paths) for column in held)

    @property
    def label(self) -> str:
        return self._label

    @property
    def on_error(self) -> OnError:
        return self._on_error

    def schema(self) -> Schema:
        return Schema(tuple(_field(name, column) for name, column in self.columns.items()), self.tree)

    def num_rows(self) -> int:
        return self._rows

    def fetch_nbytes(self, rows: int) -> int:
        """Rows of files are copied as they are fetched; those in memory only once they are decoded."""
        held = [c for c in self.columns.values() if isinstance(c, JoinedArrays)]
        return rows * (8 + sum(_row_nbytes(column) for column in held))

    def fetch(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The rows of columns that lie in files; columns in memory wait for decoding."""
        return rows, {name: c.take(rows) for name, c in self.columns.items() if isinstance(c, JoinedArrays)}

    def decode(self, fetched: tuple[np.ndarray, dict[str, np.ndarray]], buffers: Buffers = NEW_MEMORY) -> Block:
        """The rows as a block."""
        rows, read = fetched
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            columns[name] = read[name] if isinstance(column, JoinedArrays) else take_column(column, rows)
        return Block(columns, self.tree, lambda i: self._where(int(rows[i])))

    def decode_into(
        self,
        fetched: tuple[np.ndarray, dict[str, np.ndarray]],
        out: Mapping[str, np.ndarray],
        buffers: Buffers = NEW_MEMORY,
    ) -> None:
        """The rows written into the given arrays, each in one call that releases the GIL."""
        rows, read = fetched
        for name, column in self.columns.items():
            if isinstance(column, JoinedArrays):
                out[name][: len(rows)] = read[name]
            else:
                # mode="clip" keeps NumPy from buffering the result to check bounds; rows come from the engine.
                np.take(column, rows, axis=0, out=out[name][: len(rows)], mode="clip")

    def _where(self, row: int) -> str:
        first = next(iter(self.columns.values()))
        return first.where(row) if isinstance(first, JoinedArrays) else f"{self._label}, row {row}"

    def fingerprint(self) -> str:
        """From stamps of files; from shapes, dtypes and some 64 rows of arrays in memory."""
        digest = hashlib.sha256()
        picked = np.unique(np.linspace(0, self._rows - 1, 64).astype(np.int64)) if self._rows else np.empty(0, np.int64)
        for name, column in self.columns.items():
            digest.update(f"{name}|{_field(name, column)}|{self._rows}".encode())
            if isinstance(column, JoinedArrays):
                for path, offset in zip(column.paths, column.offsets, strict=True):
                    digest.update(f"{path}|{storage.stamp(path)}|{offset}".encode("utf-8", "surrogateescape"))
            else:
                some = take_column(column, picked)
                plain = isinstance(some, np.ndarray) and not some.dtype.hasobject
                digest.update(some.tobytes() if plain else repr(some.tolist()).encode())
        return digest.hexdigest()[:32]


def _field(name: str, column: AnyColumn) -> Field:
    if isinstance(column, JoinedArrays):
        return Field(name, column.dtype, column.shape[1:])
    return column_field(name, column)


def _row_nbytes(column: AnyColumn) -> int:
    if isinstance(column, JoinedArrays):
        return column.row_nbytes
    return column_nbytes(column) // max(1, len(column))


def columns_of(tree: object) -> tuple[dict[str, Column], Tree]:
    """The arrays of a tuple, dict, data frame or table, by reference where they can be, and how samples show them."""
    shown, leaves = flatten(_opened(tree))
    return {name: _column(name, leaf) for name, leaf in leaves.items()}, shown


def _opened(node: object) -> object:
    """Data frames and tables as dicts of their columns."""
    if isinstance(node, Mapping):
        return {key: _opened(value) for key, value in node.items()}
    if isinstance(node, tuple):
        return tuple(_opened(value) for value in node)
    if isinstance(node, (pa.Table, pa.RecordBatch)):
        return {name: node.column(name) for name in node.schema.names}
    if type(node).__name__ == "DataFrame" and hasattr(node, "columns"):
        frame: Any = node
        if not frame.columns.is_unique:
            raise InvalidInput("The data frame has a column name twice. Rename one: both would be one column.")
        return {str(name): _of_series(frame[name]) for name in frame.columns}
    return node


def _of_series(series: Any) -> object:
    """A column of a data frame; one of whole numbers in which some are missing goes by way of Arrow, which has them."""
    kind = series.dtype
    if not isinstance(kind, np.dtype) and getattr(kind, "kind", "") in "iub" and series.hasnans:
        return pa.array(series)
    return series.to_numpy()


def _column(name: str, leaf: Any) -> Column:
    if isinstance(leaf, pa.ChunkedArray):
        leaf = leaf.combine_chunks()
    if isinstance(leaf, pa.Array):
        if leaf.null_count and beyond_float64(leaf) is not None:
            raise InvalidInput(
                f"{name!r} has missing values, so it is float64, which would round some of its integers. Fill them."
            )
        return to_column(plain_column(leaf), null_is_nan=False)
    if isinstance(leaf, np.ma.MaskedArray):
        if np.ma.is_masked(leaf):
            raise InvalidInput(f"{name!r} is masked, and batches have no masks. Give {name}.filled(...).")
        leaf = leaf.data
    array = leaf if isinstance(leaf, np.ndarray) else _from_value(name, leaf)
    if array.ndim == 0:
        raise InvalidInput(f"{name!r} is a single value ({leaf!r}); slices are taken along the first axis of arrays.")
    if array.ndim == 1 and (array.dtype.kind in "US" or _is_text(array)):
        return pa.array(array.tolist())
    return array


def _from_value(name: str, leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
        if array.dtype.kind == "f" and isinstance(leaf, (list, tuple)) and all(type(v) is int for v in leaf):
            raise InvalidInput(f"{name!r} holds whole numbers that neither int64 nor uint64 can hold all of.")
        return array
    except ValueError as error:
        raise InvalidInput(f"{name!r} is not an array: its rows differ in length ({error}).") from error


def _is_text(array: np.ndarray) -> bool:
    return array.dtype == object and len(array) > 0 and all(isinstance(v, (str, type(None))) for v in array)

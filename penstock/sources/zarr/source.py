"""Zarr arrays as a source: stretches of whole chunks, or single rows where a chunk is a row.

Covers: several stores as one dataset, units that decode each chunk once, rows for an exact shuffle, text.
Does not cover: bytes of a store (store.py), codecs (the zarr package has them).
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column
from penstock.core.byte_cache import ByteCache, below
from penstock.core.errors import BadData, DataError, InvalidInput, MissingExtra, NotFound, PenstockError, SchemaChanged
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged

TEXT_NBYTES = 64
"""A guess at one value of open length."""

METADATA = ("zarr.json", ".zarray", ".zgroup")
"""Files of which a store has at least one."""


@dataclass(frozen=True)
class ZarrArray:
    """Facts about one array of one store. `chunk` is what is read and decoded at once: a shard, where there are any."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    text: bool

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_nbytes(self) -> int:
        return max(1, math.prod(self.shape[1:]) * (TEXT_NBYTES if self.text else self.dtype.itemsize))

    @property
    def chunk_nbytes(self) -> int:
        return math.prod(self.chunk) * (TEXT_NBYTES if self.text else self.dtype.itemsize)

    def field(self, column: str) -> Field:
        """The column that this array becomes."""
        if self.text:
            return Field(column, OBJECT, self.shape[1:], text=True)
        return Field(column, self.dtype.newbyteorder("="), self.shape[1:])


def open_store(path: str) -> Any:
    """The group or array at a path."""
    try:
        import zarr
    except ImportError as error:
        raise MissingExtra(what="read_zarr", extra="hdf5") from error
    from penstock.sources.zarr.store import ReadOnlyStore

    if not storage.is_remote(path) and os.path.isfile(storage.local_path(path)):
        raise NotFound(f"{path} is no Zarr store: it is a file, and a store is a folder.")
    try:
        return zarr.open(ReadOnlyStore(path), mode="r")
    except FileNotFoundError as error:
        raise NotFound(f"{path} is no Zarr store: it has none of {', '.join(METADATA)}.") from error
    except PenstockError:
        raise
    except Exception as error:  # whatever damaged metadata makes the package raise
        raise BadData(path, f"its Zarr metadata is damaged: {_reason(error)}") from error


def list_arrays(node: Any) -> list[str]:
    """Paths of the arrays in a group that have rows; an array that is the store itself is called ''."""
    if not hasattr(node, "members"):
        return [""]
    return sorted(name for name, found in node.members(max_depth=None) if getattr(found, "shape", ()))


def survey(path: str, wanted: Mapping[str, str]) -> dict[str, ZarrArray]:
    """Facts about the wanted arrays (column -> path in the store); all must have the same rows."""
    top = open_store(path)
    facts = {column: _facts(path, top, name) for column, name in wanted.items()}
    lengths = {fact.name: fact.rows for fact in facts.values()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
        raise SchemaChanged(f"{path}: arrays differ in rows: {told}. Choose arrays of one length.")
    return facts


def find_array(path: str, top: Any, name: str) -> Any:
    """One array of a store."""
    if not hasattr(top, "members"):
        if name.strip("/"):
            raise NotFound(f"{path} is a single array; it has no {name!r} in it. Leave x out.")
        return top
    try:
        found = top[name]
    except (KeyError, ValueError) as error:
        there = ", ".join(map(repr, list_arrays(top)))
        raise NotFound(f"{path} has no array {name!r}. There are: {there or 'none'}.") from error
    if hasattr(found, "members"):
        inside = [f"{name}/{child}" for child in list_arrays(found)]
        raise InvalidInput(f"{path}: {name!r} is a group. Name an array, such as {', '.join(map(repr, inside[:5]))}.")
    return found


def _facts(path: str, top: Any, name: str) -> ZarrArray:
    try:
        array = find_array(path, top, name)
        dtype, shape = np.dtype(array.dtype), tuple(map(int, array.shape))
        chunk = tuple(map(int, array.shards or array.chunks))
    except PenstockError:
        raise
    except Exception as error:  # whatever damaged metadata makes the package raise
        raise BadData(path, f"{name!r} has damaged metadata: {_reason(error)}") from error
    if not shape:
        raise InvalidInput(f"{path}: array {name!r} is a single value, so it has no rows.")
    text = dtype.kind in "TUO"
    if dtype.kind not in "biufcmMTUO" or dtype.fields is not None:
        raise InvalidInput(f"{path}: array {name!r} has the type {dtype}, which has no array form here.")
    return ZarrArray(name, shape, dtype, chunk, text)


class _Zarr:
    """What both kinds of source share. Stores are opened at first use, once a process."""

    def __init__(
        self, label: str, stores: Sequence[tuple[str, Mapping[str, ZarrArray]]], tree: Tree, on_error: OnError
    ):
        self.label, self.stores, self.tree, self.on_error = label, list(stores), tree, on_error
        self.starts = np.cumsum([0] + [next(iter(facts.values())).rows for _, facts in self.stores])
        self._unchanged: dict[tuple[int, str], Unchanged] = {}
        for store, (path, facts) in enumerate(self.stores):
            for column, fact in facts.items():
                self._unchanged[store, column] = Unchanged()
                self._check_metadata(store, column, folder_of(path, fact.name))
        self._clear()

    def _clear(self) -> None:
        self._arrays: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def through(self, cache: ByteCache) -> Self:
        """The same source, its remote files read through a cache."""
        other = copy.copy(self)
        paths = storage.through([path for path, _ in self.stores], cache)
        other.stores = [(path, facts) for path, (_, facts) in zip(paths, self.stores, strict=True)]
        return other

    @property
    def remote(self) -> bool:
        return storage.any_remote(path for path, _ in self.stores)

    def schema(self) -> Schema:
        """Columns as the first store has them."""
        return Schema(tuple(fact.field(column) for column, fact in self.stores[0][1].items()), self.tree)

    def num_rows(self) -> int:
        return int(self.starts[-1])

    def fingerprint(self) -> str:
        """Names, arrays, shapes, and the stamps of the files that describe them."""
        digest = hashlib.blake2b(digest_size=16)
        for path, facts in self.stores:
            for column, fact in facts.items():
                digest.update(f"{path}|{column}={fact.name}{fact.shape}{fact.chunk}{fact.dtype.str}".encode())
                digest.update(_stamp(folder_of(path, fact.name)).encode())
        return digest.hexdigest()

    def array(self, store: int, column: str) -> Any:
        """An open array."""
        with self._lock:
            if (store, column) not in self._arrays:
                path, facts = self.stores[store]
                self._arrays[store, column] = find_array(path, open_store(path), facts[column].name)
            return self._arrays[store, column]

    def read(self, store: int, column: str, rows: slice | np.ndarray) -> Column:
        """Some rows of one column; damage becomes `BadData`."""
        path, facts = self.stores[store]
        try:
            array = self.array(store, column)
            self._check(store, column, array, rows)
            found = array[rows] if isinstance(rows, slice) else array.oindex[rows]
            self._check(store, column, array, rows)
        except DataError:
            raise
        except Exception as error:  # codecs raise what they like: zlib.error, RuntimeError, ValueError, ...
            raise BadData(path, f"{facts[column].name!r} cannot be read: {_reason(error)}") from error
        return _finished(np.asarray(found), facts[column])

    def _check(self, store: int, column: str, array: Any, rows: slice | np.ndarray) -> None:
        """Raise `FileChanged` if the array's description or a chunk with these rows is not what it was.

        A chunk that is missing has the fill value, so one that goes missing would be zeros without a word. A remote
        store is asked for the description only.
        """
        path, facts = self.stores[store]
        fact = facts[column]
        folder = folder_of(path, fact.name)
        self._check_metadata(store, column, folder)
        if storage.is_remote(path):
            return
        grid = [-(-n // c) for n, c in zip(fact.shape, fact.chunk, strict=True)]
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        inner = math.prod(grid[1:])
        for strip in np.unique(wanted // fact.chunk[0]).tolist():
            for cell, place in enumerate(np.ndindex(*grid[1:])):
                key = array.metadata.encode_chunk_key((strip, *place))
                number = len(METADATA) + strip * inner + cell
                self._unchanged[store, column].check(number, below(folder, key), may_be_missing=True)

    def _check_metadata(self, store: int, column: str, folder: str) -> None:
        for number, name in enumerate(METADATA):
            self._unchanged[store, column].check(number, below(folder, name), may_be_missing=True)

    def origin(self, store: int, row: int) -> str:
        """A row in words."""
        return f"{self.stores[store][0]}, row {row}"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_arrays", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


@dataclass(frozen=True)
class Fetched:
    """Rows that were read, their columns, and the damage in place of others."""

    rows: np.ndarray
    columns: dict[str, Column]
    bad: list[BadData]


class ZarrRows(_Zarr):
    """A `RowSource`: rows are read one by one, each chunk that holds some of them once a call."""

    def fetch_nbytes(self, rows: int) -> int:
        return sum(rows * f.row_nbytes + 2 * f.chunk_nbytes for f in self.stores[0][1].values())

    def fetch(self, rows: np.ndarray) -> Fetched:
        """The rows that can be read, and what is wrong with the others; decoding is the package's and happens here."""
        try:
            return Fetched(rows, self._fetch(rows), [])
        except BadData:
            found: list[tuple[int, dict[str, Column]]] = []
            bad: list[BadData] = []
            for row in rows:
                try:
                    found.append((int(row), self._fetch(np.array([row]))))
                except BadData as error:
                    bad.append(BadData(self._place(int(row)), error.reason))
            columns = {c: np.concatenate([f[c] for _, f in found]) for c in self.stores[0][1]} if found else {}
            return Fetched(np.array([row for row, _ in found], np.int64), columns, bad)

    def _fetch(self, rows: np.ndarray) -> dict[str, Column]:
        stores = np.searchsorted(self.starts, rows, side="right") - 1
        parts: dict[str, list[Column]] = {column: [] for column in self.stores[0][1]}
        order: list[np.ndarray] = []
        for store in np.unique(stores):
            mine = np.flatnonzero(stores == store)
            inside, back = np.unique(rows[mine] - self.starts[store], return_inverse=True)
            order.append(mine)
            for column, found in parts.items():
                found.append(self.read(int(store), column, inside)[back])
        place = np.argsort(np.concatenate(order)) if order else np.empty(0, np.int64)
        return {column: np.concatenate(found)[place] for column, found in parts.items()}

    def decode(self, fetched: Fetched, buffers: Buffers = NEW_MEMORY) -> Block:
        """The rows as they are; damaged rows are reported."""
        rows, columns = fetched.rows, fetched.columns
        for error in fetched.bad:
            self.on_error.bad(error)
        if not columns:
            columns = {c: np.empty((0, *f.shape[1:]), f.dtype) for c, f in self.stores[0][1].items()}
        return Block(columns, self.tree, lambda i: self._place(int(rows[i])))

    def decode_into(self, fetched: Fetched, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        """Copy the rows into the given arrays."""
        if fetched.bad:
            raise fetched.bad[0]
        for name, column in fetched.columns.items():
            np.copyto(out[name], column)

    def _place(self, row: int) -> str:
        store = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.origin(store, row - int(self.starts[store]))


class ZarrUnits(_Zarr):
    """A `UnitSource`: a unit is a stretch of rows of about 8 MB that ends where chunks end."""

    def __init__(
        self, label: str, stores: Sequence[tuple[str, Mapping[str, ZarrArray]]], tree: Tree, on_error: OnError
    ):
        super().__init__(label, stores, tree, on_error)
        self.unit_rows = [rows_per_unit(facts) for _, facts in self.stores]
        counts = np.diff(self.starts)
        self.unit_starts = np.cumsum(
            [0, *(-(-rows // step) for rows, step in zip(counts, self.unit_rows, strict=True))]
        )

    def num_units(self) -> int:
        return int(self.unit_starts[-1])

    def _stretch(self, unit: int) -> tuple[int, int, int]:
        store = int(np.searchsorted(self.unit_starts, unit, side="right")) - 1
        start = (unit - int(self.unit_starts[store])) * self.unit_rows[store]
        return store, start, min(int(self.starts[store + 1] - self.starts[store]), start + self.unit_rows[store])

    def unit_nbytes(self, unit: int) -> int:
        """The rows, and of each array a few chunks as stored and as decoded."""
        store, start, stop = self._stretch(unit)
        return sum((stop - start) * f.row_nbytes + 4 * f.chunk_nbytes for f in self.stores[store][1].values())

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's one block; where a chunk is damaged, the rows of the other chunks."""
        if part:
            return
        store, start, stop = self._stretch(unit)
        blocks = self._sound(store, start, stop)
        if blocks:
            yield Block.concat(blocks)

    def _sound(self, store: int, start: int, stop: int) -> list[Block]:
        path, facts = self.stores[store]
        try:
            columns = {column: self.read(store, column, slice(start, stop)) for column in facts}
        except BadData as error:
            step = max(fact.chunk[0] for fact in facts.values())
            if stop - start > step:  # close in on the damage: what lies in other chunks is still good
                middle = start + max(1, (stop - start) // step // 2) * step
                return [*self._sound(store, start, middle), *self._sound(store, middle, stop)]
            self.on_error.bad(BadData(f"{path}, rows {start} to {stop - 1}", error.reason))
            return []
        return [Block(columns, self.tree, lambda i: self.origin(store, start + i))]


def rows_per_unit(facts: Mapping[str, ZarrArray]) -> int:
    """Rows of one unit: about a block's bytes, in whole chunks of all arrays if that is not far too many."""
    target = max(1, BLOCK_NBYTES // sum(fact.row_nbytes for fact in facts.values()))
    step = math.lcm(*(max(1, fact.chunk[0]) for fact in facts.values()))
    if step > 4 * target:
        step = max(facts.values(), key=lambda fact: fact.row_nbytes).chunk[0]
    return max(1, target // step) * step


def _finished(found: np.ndarray, fact: ZarrArray) -> Column:
    if not fact.text:
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
    values = found.astype(object)
    return pa.array(values.tolist(), pa.string()) if found.ndim == 1 else values


def folder_of(store: str, name: str) -> str:
    """The folder of an array in a store; an array that is the store itself has no name."""
    return below(store, name) if name else store


def _stamp(path: str) -> str:
    for name in METADATA:
        try:
            return storage.stamp(below(path, name))
        except NotFound:
            continue
    return ""


def _reason(error: BaseException) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or ["?"])[0][:200]

"""HDF5 files as a source: rows by address where the file allows it, stretches of chunks otherwise.

Covers: several files as one dataset, units that inflate each chunk once, single rows for an exact shuffle.
Does not cover: what is in a file (survey.py), addresses and filters (chunks.py).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column
from penstock.core.errors import BadData
from penstock.core.schema import OBJECT, Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.sources.from_files import FileSetSource
from penstock.sources.hdf5.chunks import RowReader, read_pieces
from penstock.sources.hdf5.files import Files5
from penstock.sources.hdf5.heap import lengths, read_values
from penstock.sources.hdf5.nested import is_nested, read_nested
from penstock.sources.hdf5.survey import Dataset5, open_h5, reason
from penstock.sources.storage import files as storage

OPEN_LIBRARY_FILES = 16

READERS_KEPT = 1024
"""Datasets whose chunk addresses are kept; an object for each of a million files would be a gigabyte."""


class _Hdf5(FileSetSource[Files5]):
    """What both kinds of source share: the files, their facts, and readers made when needed."""

    def __init__(self, label: str, files: Files5, tree: Tree, on_error: OnError):
        super().__init__(files, label, on_error)
        self.tree = tree
        self.starts = np.concatenate(([0], np.cumsum(files.rows)))
        self._clear()

    def _clear(self) -> None:
        self._readers: OrderedDict[tuple[int, str], RowReader] = OrderedDict()
        self._library: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def schema(self) -> Schema:
        """Columns as the first file has them; the survey saw to it that the others agree."""
        facts = self.files.facts(0)
        return Schema(tuple(fact.field(column) for column, fact in facts.items()), self.tree)

    def num_rows(self) -> int:
        return int(self.starts[-1])

    def fingerprint(self) -> str:
        """Names, datasets, shapes and file stamps."""
        digest = hashlib.blake2b(digest_size=16)
        for path, facts in self.files:
            digest.update(f"{path}|{storage.stamp(path)}|".encode())
            digest.update("|".join(f"{c}={f.name}{f.shape}{f.stored.str}" for c, f in facts.items()).encode())
        return digest.hexdigest()

    def reader(self, file: int, column: str) -> RowReader:
        """The reader of one dataset; chunk addresses are looked up at first use and kept for the files of late."""
        key = (file, column)
        with self._lock:
            found = self._readers.get(key)
            if found is None:
                found = self._readers[key] = RowReader(self.files.path(file), self.files.facts(file)[column])
            self._readers.move_to_end(key)
            while len(self._readers) > READERS_KEPT:
                self._readers.popitem(last=False)
            return found

    def origin(self, file: int, row: int) -> str:
        """A row in words."""
        return f"{self.files.path(file)}, row {row}"

    def close(self) -> None:
        """Close files that the library holds open."""
        with self._lock:
            for file, stream in self._library.values():
                file.close()
                if stream is not None:
                    stream.close()
            self._library.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_readers", "_library", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


class Hdf5Rows(_Hdf5):
    """A `RowSource`: every dataset is unfiltered, so each row has an address."""

    def fetch_nbytes(self, rows: int) -> int:
        return rows * self.schema().row_nbytes

    def fetch(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Read the rows, each run of neighbours in one call."""
        files = np.searchsorted(self.starts, rows, side="right") - 1
        inside = rows - self.starts[files]
        out: dict[str, np.ndarray] = {}
        for column, fact in self.files.facts(0).items():
            out[column] = np.empty((len(rows), *fact.shape[1:]), fact.stored)
        # A run is broken where the next row is not the neighbour in the same file.
        breaks = np.flatnonzero((np.diff(inside) != 1) | (np.diff(files) != 0)) + 1
        begins = np.concatenate(([0], breaks)) if len(rows) else np.empty(0, np.int64)
        ends = np.append(begins[1:], len(rows))
        for file in np.unique(files):
            mine = files[begins] == file
            runs = list(zip(begins[mine].tolist(), ends[mine].tolist(), strict=True))
            self.files.check(int(file))
            for column, array in out.items():
                self._fetch_runs(int(file), column, inside, runs, array)
            self.files.check(int(file))
        return rows, out

    def _fetch_runs(
        self, file: int, column: str, inside: np.ndarray, runs: list[tuple[int, int]], out: np.ndarray
    ) -> None:
        reader = self.reader(file, column)

        def pieces() -> Iterator[tuple[int, memoryview]]:
            for begin, end in runs:
                yield from reader.pieces(int(inside[begin]), out[begin:end])

        if out.size:
            read_pieces(reader.path, pieces())

    def decode(self, fetched: tuple[np.ndarray, dict[str, np.ndarray]], buffers: Buffers = NEW_MEMORY) -> Block:
        """Bytes in the machine's order; there is nothing else to decode."""
        rows, columns = fetched
        return Block({n: native(c) for n, c in columns.items()}, self.tree, lambda i: self._place(int(rows[i])))

    def decode_into(
        self,
        fetched: tuple[np.ndarray, dict[str, np.ndarray]],
        out: Mapping[str, np.ndarray],
        buffers: Buffers = NEW_MEMORY,
    ) -> None:
        """Copy the rows into the given arrays."""
        for name, column in fetched[1].items():
            np.copyto(out[name], column)

    def _place(self, row: int) -> str:
        file = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.origin(file, row - int(self.starts[file]))


class Hdf5Units(_Hdf5):
    """A `UnitSource`: a unit is a stretch of rows of about 8 MB that ends where chunks end."""

    def __init__(self, label: str, files: Files5, tree: Tree, on_error: OnError):
        super().__init__(label, files, tree, on_error)
        steps = (rows_per_unit(files.facts(file)) for file in range(len(files)))
        self.unit_rows = np.fromiter(steps, np.int64, len(files))
        self.unit_starts = np.concatenate(([0], np.cumsum(-(-files.rows // self.unit_rows))))

    def num_units(self) -> int:
        return int(self.unit_starts[-1])

    def _stretch(self, unit: int) -> tuple[int, int, int]:
        file = int(np.searchsorted(self.unit_starts, unit, side="right")) - 1
        step, rows = int(self.unit_rows[file]), int(self.files.rows[file])
        start = (unit - int(self.unit_starts[file])) * step
        return file, start, min(rows, start + step)

    def unit_nbytes(self, unit: int) -> int:
        """The rows, plus a chunk as stored and as inflated, plus the library's objects for text."""
        file, start, stop = self._stretch(unit)
        total = 0
        for fact in self.files.facts(file).values():
            total += (stop - start) * fact.row_nbytes * (2 if fact.storage == "library" or fact.in_heap else 1)
            total += 3 * fact.chunk_nbytes if fact.storage == "packed" else 0
        return total

    def one_block(self, unit: int) -> bool:
        file = self._stretch(unit)[0]
        return not any(fact.in_heap for fact in self.files.facts(file).values())

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's blocks: one, or several where values of open length are larger than the samples promised."""
        file, start, stop = self._stretch(unit)
        yield from itertools.islice(self._blocks(file, start, stop, buffers), part, None)

    def _blocks(self, file: int, start: int, stop: int, buffers: Buffers) -> Iterator[Block]:
        path, facts = self.files[file]
        self.files.check(file)
        try:
            columns = {column: self._read(file, column, start, stop, buffers) for column in facts}
            self.files.check(file)
        except BadData as error:
            self.files.check(file)
            smaller = damage_step(facts)
            if stop - start > smaller:  # close in on the damage: what lies in other chunks is still good
                middle = start + max(1, (stop - start) // smaller // 2) * smaller
                yield from self._joined(file, start, middle, stop, buffers)
                return
            self.on_error.bad(BadData(f"{path}, rows {start} to {stop - 1}", error.reason))
            return
        for low, high in cuts(columns, facts):
            yield self._finished(file, start + low, {name: column[low:high] for name, column in columns.items()})

    def _joined(self, file: int, start: int, middle: int, stop: int, buffers: Buffers) -> Iterator[Block]:
        """What is left of a damaged unit, as one block so that it is no more parts than a whole one."""
        blocks = [*self._blocks(file, start, middle, buffers), *self._blocks(file, middle, stop, buffers)]
        if blocks:
            yield Block.concat(blocks)

    def _finished(self, file: int, start: int, columns: Mapping[str, np.ndarray]) -> Block:
        """Raw columns as users see them; rows whose text cannot be read are reported and left out."""
        path, facts = self.files[file]
        bad: dict[int, str] = {}
        done: dict[str, Column] = {}
        for name, raw in columns.items():
            done[name], wrong = finish(path, facts[name], raw)
            bad.update({row: f"{facts[name].name!r}: {why}" for row, why in wrong.items()})
        block = Block(done, self.tree, lambda i: self.origin(file, start + i))
        if not bad:
            return block
        for row in sorted(bad):
            self.on_error.bad(BadData(self.origin(file, start + row), bad[row]))
        return block.take(np.setdiff1d(np.arange(len(block)), list(bad)))

    def _read(self, file: int, column: str, start: int, stop: int, buffers: Buffers) -> np.ndarray:
        fact = self.files.facts(file)[column]
        if fact.storage != "library":
            return self.reader(file, column).read(start, stop, buffers)
        path = self.files.path(file)
        try:
            return read_member(self._library_file(file)[fact.name], fact, start, stop)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise BadData(path, f"{fact.name!r} cannot be read: {reason(error)}") from error

    def _library_file(self, file: int) -> Any:
        """An open h5py file; a few are kept."""
        with self._lock:
            if file not in self._library:
                while len(self._library) >= OPEN_LIBRARY_FILES:
                    old, stream = self._library.pop(next(iter(self._library)))
                    old.close()
                    if stream is not None:
                        stream.close()
                self._library[file] = open_h5(self.files.path(file))
            return self._library[file][0]


def read_member(node: Any, fact: Dataset5, start: int, stop: int) -> np.ndarray:
    """Rows of a dataset, or of one field of its compound type."""
    if not fact.member:
        return np.asarray(node[start:stop])
    found = np.asarray(node.fields(fact.member[0])[start:stop])
    for part in fact.member[1:]:
        found = found[part]
    return np.ascontiguousarray(found)


def rows_per_unit(facts: Mapping[str, Dataset5]) -> int:
    """Rows of one unit: about a block's bytes, in whole chunks of all datasets if that is not far too many."""
    row_nbytes = max(1, sum(fact.row_nbytes for fact in facts.values()))
    target = max(1, BLOCK_NBYTES // row_nbytes)
    steps = [fact.chunk[0] for fact in facts.values() if fact.chunk and fact.storage in ("packed", "library")]
    if not steps:
        return target
    step = math.lcm(*steps)
    if step > 4 * target:
        # Chunks of the small datasets are inflated again at the borders; those of the largest never are.
        largest = max((f for f in facts.values() if f.chunk), key=lambda f: f.row_nbytes)
        step = largest.chunk[0] if largest.chunk else 1
    return max(1, target // step) * step


def damage_step(facts: Mapping[str, Dataset5]) -> int:
    """Rows below which searching for damage makes no sense: one compressed chunk's worth, or a single row."""
    return max(fact.chunk[0] if fact.chunk and fact.storage == "packed" else 1 for fact in facts.values())


def cuts(columns: Mapping[str, np.ndarray], facts: Mapping[str, Dataset5]) -> Iterator[tuple[int, int]]:
    """Row ranges of at most about two blocks' bytes each, by the lengths that heap records tell."""
    rows = len(next(iter(columns.values())))
    heaps = [lengths(columns[n].reshape(rows, -1), f.item).sum(axis=1) for n, f in facts.items() if f.in_heap]
    if not heaps:
        yield 0, rows
        return
    total = np.cumsum(sum(heaps) + sum(f.stride for f in facts.values()))
    low = 0
    while low < rows:
        before = int(total[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(total, before + 2 * BLOCK_NBYTES, side="right")))
        yield low, high
        low = high


def native(array: np.ndarray) -> np.ndarray:
    """The array in the machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def finish(path: str, fact: Dataset5, raw: np.ndarray) -> tuple[Column, dict[int, str]]:
    """A raw column as users see it, and the rows that cannot be read with the reasons."""
    if fact.stored.kind not in "SO":
        return native(raw), {}
    bad: dict[int, str] = {}
    if fact.in_heap and is_nested(fact.stored):
        return read_nested(path, raw.reshape(-1), fact.stored)
    if fact.in_heap:
        values, bad = read_values(path, raw.reshape(-1), fact.item)
    else:
        values = raw.ravel().tolist()
    if not (fact.text or fact.stored.kind == "S"):
        inner = fact.stored.metadata["vlen"] if fact.stored.metadata else raw.dtype
        arrays = [np.frombuffer(v or b"", inner) if isinstance(v, bytes) or v is None else v for v in values]
        return pa.array([native(a) for a in arrays], pa.list_(pa.from_numpy_dtype(inner.newbyteorder("=")))), bad
    texts = pa.array(
        [None if v is None else v.partition(b"\0")[0] for v in values] if fact.in_heap else values, pa.binary()
    )
    column, wrong = _as_text(texts) if fact.text else (texts, {})
    bad.update(wrong)
    if raw.ndim == 1:
        return column, bad
    width = max(1, math.prod(raw.shape[1:]))
    out = np.empty(raw.size, OBJECT)
    out[:] = column.to_pylist()
    return out.reshape(raw.shape), {row // width: why for row, why in bad.items()}


def _as_text(values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Bytes as text; where some are not UTF-8, those are empty and named."""
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        bad: dict[int, str] = {}
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode("utf-8"))
            except UnicodeDecodeError as error:
                bad[row] = f"text is not UTF-8 ({error.reason} at its byte {error.start})"
                texts.append("")
        return pa.array(texts, pa.string()), bad

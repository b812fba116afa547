"""A query's result as a source: ranges of a key are units, record batches of bounded bytes are blocks.

Covers: cutting streams into blocks that are always the same, resuming after a lost connection, decoding image columns.
Does not cover: talking to databases (connect.py), ranges (partition.py).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import arrow_of
from penstock.core.block import Block
from penstock.core.errors import BadData, DataError, InvalidInput, NotFound
from penstock.core.schema import Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.sources.images.decode import ImageOptions, decode_image_into
from penstock.sources.sql.connect import BATCH_NBYTES, SAMPLED_ROWS, ConnectionLostError, Database, identifier
from penstock.sources.sql.partition import Partition, PartitionLayout, find_key, plan, select, wrapped
from penstock.sources.sql.types import as_told, require_forms, with_nulls
from penstock.sources.tables.blocks import TableShape

TRIES = 6
"""Attempts without a single new row before giving up; pauses double from 0.2 s to 6.4 s."""

ROWS_PER_BLOCK = 65_536


class SqlSource:
    """A `UnitSource`. What the database says is asked once, at first use, and travels with the source."""

    changes_unseen = True
    """A row may change without a trace that `fingerprint` could show."""

    def __init__(
        self,
        database: Database,
        query: str,
        shape: TableShape,
        *,
        partition_on: str | None,
        partitions: Any,
        images: Mapping[str, ImageOptions],
        on_error: OnError,
    ) -> None:
        self.database, self.query, self.shape = database, query, shape
        self.partition_on, self.partitions, self.images = partition_on, partitions, dict(images)
        self._on_error = on_error
        self._arrow: pa.Schema | None = None
        self._layout: PartitionLayout | None = None
        self._row_nbytes = 256
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        return f"sql({self.database.name})"

    @property
    def on_error(self) -> OnError:
        return self._on_error

    def arrow_schema(self) -> pa.Schema:
        """The result's columns as the database has them, from a few rows."""
        with self._lock:
            if self._arrow is None:
                sample = self._retried(lambda: list(self.database.stream(self._sample_query())))
                if not sample:
                    raise DataError(f"{self.database.name}: the query gives no columns.")
                rows = sum(len(batch) for batch in sample)
                self._row_nbytes = max(1, sum(int(row_sizes(b).sum()) for b in sample) // max(1, rows))
                wanted = self.shape.columns_needed
                require_forms(sample[0].schema, sample[0].schema.names if wanted is None else wanted, self.label)
                self._arrow = sample[0].schema
                self._check_images(self._arrow)
                if self.shape.nullable is None:
                    seen = with_nulls(sample)
                    self.shape = replace(self.shape, nullable=seen | self._with_nulls(sample[0].schema, seen))
            return self._arrow

    def _with_nulls(self, told: pa.Schema, seen: frozenset[str]) -> frozenset[str]:
        """Columns of integers and booleans in which a value is missing behind the first rows: the database counts."""
        wanted = told.names if self.shape.columns_needed is None else self.shape.columns_needed
        asked = [name for name in wanted if told.names.count(name) == 1 and name not in seen]
        asked = [n for n in asked if pt.is_integer(told.field(n).type) or pt.is_boolean(told.field(n).type)]
        if not asked:
            return frozenset()
        counts = ", ".join(f"count(*) - count({identifier(name)}) as n{i}" for i, name in enumerate(asked))
        (found,) = self._retried(lambda: self.database.rows(f"select {counts} from {wrapped(self.query)}"))
        return frozenset(name for name, missing in zip(asked, found, strict=True) if missing)

    def _sample_query(self) -> str:
        return f"select * from {wrapped(self.query)} limit {SAMPLED_ROWS // 8}"

    def _check_images(self, arrow: pa.Schema) -> None:
        for name in self.images:
            if name not in arrow.names:
                raise NotFound(f"images= names {name!r}, but the query has: {', '.join(arrow.names)}.")
            kind = arrow.field(name).type
            if not (pt.is_binary(kind) or pt.is_large_binary(kind)):
                raise InvalidInput(f"images= names {name!r}, which is {kind}, not bytes.")

    def layout(self) -> PartitionLayout:
        """The ranges that units are."""
        arrow = self.arrow_schema()
        with self._lock:
            if self._layout is None:
                if self.partition_on is None:
                    self._layout = PartitionLayout(None, (Partition(),), None)
                else:
                    key = find_key(self.partition_on, arrow.names)
                    self._layout = self._retried(lambda: plan(self.database, self.query, key, self.partitions))
            return self._layout

    def schema(self) -> Schema:
        """Columns after images are decoded."""
        arrow = self.arrow_schema()
        for name, options in self.images.items():
            kind = pa.fixed_shape_tensor(pa.uint8(), [*(options.size or ()), options.channels])
            arrow = arrow.set(arrow.get_field_index(name), pa.field(name, kind))
        return self.shape.schema(arrow, self.label)

    def num_units(self) -> int:
        return len(self.layout().partitions)

    def num_rows(self) -> int | None:
        return self.layout().rows

    def unit_nbytes(self, unit: int) -> int:
        """A block, as fetched and as shaped, plus what the driver and the cutter hold."""
        self.arrow_schema()
        return 2 * BLOCK_NBYTES + 4 * BATCH_NBYTES + 3 * (self._row_nbytes + self._decoded_nbytes())

    def _decoded_nbytes(self) -> int:
        return sum(o.channels * o.size[0] * o.size[1] for o in self.images.values() if o.size)

    def fingerprint(self) -> str:
        """The question, its columns, and the ranges and number of rows that were found."""
        told = (self.database.name, self.query, str(self.arrow_schema().remove_metadata()), self.layout(), self.shape)
        return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The blocks of one range, in the key's order."""
        layout = self.layout()
        batches = self._resumed(layout.key, layout.partitions[unit])
        pieces = cut(batches, BLOCK_NBYTES, self._decoded_nbytes())
        try:
            yield from blocks_from(pieces, part, lambda piece: self._block(piece, layout.key, buffers))
        finally:
            batches.close()

    def fetched(self, unit: int) -> Iterator[pa.RecordBatch]:
        """The rows of one range as the database gives them, cut as `open` cuts them."""
        layout = self.layout()
        batches = self._resumed(layout.key, layout.partitions[unit])
        try:
            yield from map(itemgetter(1), cut(batches, BLOCK_NBYTES, self._decoded_nbytes()))
        finally:
            batches.close()

    def shaped(self, rows: pa.RecordBatch, buffers: Buffers = NEW_MEMORY) -> Block:
        """The block that fetched rows become."""
        return self._block((0, rows), self.layout().key, buffers)

    def _block(self, piece: tuple[int, pa.RecordBatch], key: str | None, buffers: Buffers) -> Block:
        first, rows = piece
        rows = as_told(rows, self.arrow_schema(), self.label)
        keys = rows.column(key) if key is not None else None

        def origin(row: int) -> str:
            place = f"{key} = {keys[row].as_py()!r}" if keys is not None else f"row {first + row}"
            return f"{self.label}, {place}"

        kept = np.arange(len(rows))
        for name, options in self.images.items():
            rows, good = decoded(rows, name, options, lambda i: origin(int(kept[i])), self.on_error, buffers)
            kept = kept[good]
        return self.shape.block(rows, lambda i: origin(int(kept[i])), self.on_error, buffers)

    def _resumed(self, key: str | None, partition: Partition) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a range; after a lost connection, from the last key on, without those already given."""
        last: Any = None
        given, with_last, failures = 0, 0, 0
        while True:
            skip = with_last if last is not None else 0
            try:
                for batch in self.database.stream(select(self.query, key, partition, last), self._row_nbytes):
                    batch, skip = batch.slice(min(skip, len(batch))), max(0, skip - len(batch))
                    if not len(batch):
                        continue
                    if key is not None and not partition.nulls:
                        last, with_last = last_key(batch.column(key), last, with_last)
                    given, failures = given + len(batch), 0
                    yield batch
                return
            except ConnectionLostError as error:
                failures += 1
                if failures >= TRIES or (given and last is None):
                    raise self._gave_up(error, key, last, given, failures) from None
            time.sleep(0.2 * 2 ** (failures - 1))

    def _gave_up(self, error: ConnectionLostError, key: str | None, last: Any, given: int, failures: int) -> DataError:
        if key is None or last is None:
            return DataError(
                f"{self.database.name}: the connection was lost after {given} rows ({error}). "
                f"Give partition_on= a unique column, so that reading can go on from the last row."
            )
        return DataError(
            f"{self.database.name}: the connection was lost {failures} times without progress, at "
            f"{key} = {last!r} after {given} rows ({error}). See that the server is up, then resume."
        )

    def _retried(self, ask: Any) -> Any:
        for failures in itertools.count(1):
            try:
                return ask()
            except ConnectionLostError as error:
                if failures >= 3:
                    raise DataError(f"{self.database.name}: no connection in {failures} tries ({error}).") from None
                time.sleep(0.2 * 2**failures)
        raise AssertionError("unreachable")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def last_key(keys: pa.Array, last: Any, with_last: int) -> tuple[Any, int]:
    """The last key of a batch, and how many rows in a row have had it so far."""
    value = keys[-1].as_py()
    same = pc.equal(keys, keys[-1]).to_numpy(zero_copy_only=False)
    count = len(same) if same.all() else int(np.argmin(same[::-1]))
    return value, count + (with_last if count == len(same) and value == last else 0)


def row_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of each row, near enough to cut by, and the same however the stream was batched."""
    sizes = np.full(len(batch), 8, np.int64)
    for column in batch.columns:
        column = column.storage if isinstance(column, pa.ExtensionArray) else column
        kind = column.type
        if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
            lengths = pc.fill_null(pc.binary_length(column), 0)
        elif pt.is_list(kind) or pt.is_large_list(kind):
            lengths = pc.multiply(pc.fill_null(pc.list_value_length(column), 0), 8)
        else:
            sizes += 8
            continue
        sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + 4
    return sizes


def cut(batches: Iterator[pa.RecordBatch], nbytes: int, extra: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Regroup a stream into batches that end where `nbytes` are reached: by rows alone, not by how they arrived.

    Each comes with the number of rows before it.
    """
    held: list[pa.RecordBatch] = []
    filled = rows = first = 0
    for batch in batches:
        total, start = np.cumsum(row_sizes(batch) + extra), 0
        while start < len(batch):
            before = int(total[start - 1]) if start else 0
            stop = int(np.searchsorted(total, before + nbytes - filled, side="left")) + 1
            stop = min(stop, start + ROWS_PER_BLOCK - rows)
            held.append(batch.slice(start, stop - start))
            rows += len(held[-1])
            start = min(stop, len(batch))
            filled += int(total[start - 1]) - before
            if filled >= nbytes or rows >= ROWS_PER_BLOCK:
                yield first, _joined(held)
                first, filled, rows = first + rows, 0, 0
    if held:
        yield first, _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one, and no longer as many."""
    whole = pa.concat_batches(held)
    held.clear()
    return whole


def decoded(
    rows: pa.RecordBatch, name: str, options: ImageOptions, origin: Any, on_error: OnError, buffers: Buffers
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Rows with an image column decoded, and which rows could be."""
    blobs = rows.column(name)
    out = np.empty((len(rows), *(options.size or ()), options.channels), np.uint8)
    good: list[int] = []
    for row in range(len(rows)):
        where = f"{origin(row)}, column {name!r}"
        blob = blobs[row]
        try:
            if not blob.is_valid:
                raise BadData(where, "there is no image (NULL)")
            decode_image_into(blob.as_py(), out[len(good)], options, where=where, buffers=buffers)
        except BadData as error:
            on_error.bad(error)
            continue
        good.append(row)
    kept = np.array(good, np.int64)
    rows = rows if len(kept) == len(rows) else rows.take(arrow_of(kept))
    shape = out.shape[1:]
    pixels = pa.FixedSizeListArray.from_arrays(arrow_of(out[: len(kept)].reshape(-1)), int(np.prod(shape)))
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), pixels)
    return rows.set_column(rows.schema.get_field_index(name), name, tensor), kept

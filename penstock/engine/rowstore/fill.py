"""Fill a row store: one pass over a source, each row to a random bucket.

Covers: gathering runs, sorting them by bucket, refusing a disk that is too small, going on after a kill.
Does not cover: the files (log.py), reading the rows again (source.py).

A row's bucket is a hash of its number, so that neither threads, nor the size of a run, nor a kill in between change
what is in a bucket and in which order. Rows in random buckets, and the rows of a bucket in random order, are a uniform
permutation: it is the distribution sort of Rao and Sandelius.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block
from penstock.core.errors import SchemaChanged
from penstock.core.source import UnitSource, decoded_nbytes
from penstock.engine.buffers.leased_rows import Held, Hold
from penstock.engine.cache.codec import RecordLayout, encode_block
from penstock.engine.rowstore.log import BUCKETS, RunWriter, StoreFacts
from penstock.engine.rowstore.wait import Wait
from penstock.engine.streams.stream import Context, Piece
from penstock.engine.streams.transform import Fused
from penstock.engine.streams.units import UnitBlocks, UnitOrder
from penstock.memory.watchdog import trim_allocator
from penstock.order.permutation import hashed

_RUN_SHARE, _RUN_LEAST, _RUN_MOST = 8, 4_000_000, 32_000_000
"""A run takes this part of the data budget, within limits. Its size does not change the order of rows."""

_RUNS, _RUN_ENOUGH = 60, 8_000_000
"""So many runs are few enough for blocks to be read by 32 KB and more: small data needs no larger ones than that."""

_SORT_NBYTES = 26
"""What sorting takes for a row, beside the row: its number, its hash, its bucket and its place."""

_SLICE_NBYTES = 4_000_000
_KEPT_FREE_NBYTES = 256_000_000
"""Left free on the disk."""


def fill(context: Context, source: UnitSource, writer: RunWriter) -> StoreFacts:
    """Read all of a source, from where the journal ends, and finish the store."""
    schema = source.schema()
    # What functions return may differ from row to row, whatever the first rows look like.
    layout = RecordLayout(schema) if schema.fixed and not getattr(source, "transforms", ()) else None
    last: dict[str, Any] = writer.journal[-1] if writer.journal else {"rows": 0, "state": None}
    run_nbytes = _run_nbytes(decoded_nbytes(source), context.most_nbytes)
    stream = UnitBlocks(
        context,
        source,
        UnitOrder(lambda place: place, source.num_units()),
        cycle=1,
        fused=Fused(()),
        state=last["state"],
    )
    run = _Run(layout, run_nbytes, int(last["rows"]))
    wait = Wait(context, source.label, writer.nbytes)
    # Fixed rows are copied into the run; others are joined and encoded beside it.
    hold = Hold(context.budget.force(run_nbytes * (1 if layout else 3) + _SLICE_NBYTES, who="row store"))
    try:
        while (piece := stream.pull()) is not None:
            run.add(piece)
            del piece
            if run.full:
                _check_room(writer, source, run)
                run.write(writer)
                wait.tell(run.before, writer.nbytes, _whole(source, run, writer.nbytes))
        if run.rows or not writer.journal:
            run.write(writer)
    finally:
        stream.close()
        del hold
    facts = StoreFacts(run.before, writer.nbytes, len(writer.journal), 0 if layout is None else layout.nbytes)
    writer.finish(facts)
    del run, stream
    _give_back(context)
    return facts


def _give_back(context: Context) -> None:
    """What the pass has freed is of other sizes than what epochs ask for: buffers and allocators would keep it."""
    if context.buffers is not None:
        context.buffers.drop_idle()
    pa.default_memory_pool().release_unused()
    trim_allocator()


def _run_nbytes(whole_nbytes: int, budget_nbytes: int) -> int:
    """Bytes of a run for a store of about `whole_nbytes`."""
    enough = min(_RUN_MOST, max(_RUN_ENOUGH, whole_nbytes // _RUNS))
    return max(_RUN_LEAST, min(enough, budget_nbytes // _RUN_SHARE))


class _Run:
    """Rows that wait to be written, in the order in which they came."""

    def __init__(self, layout: RecordLayout | None, nbytes: int, before: int) -> None:
        self._layout, self._limit, self.before = layout, nbytes, before
        each = _SORT_NBYTES + (0 if layout is None else layout.nbytes)
        self._records = None if layout is None else _pages(max(1, nbytes // each), layout.dtype)
        self._held: list[Held] = []
        self._waiting: Block | None = None
        self.rows = self._nbytes = self._held_nbytes = 0
        self.state: Any = None

    @property
    def full(self) -> bool:
        return self._held_nbytes >= self._limit

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def add(self, piece: Piece) -> None:
        assert isinstance(piece.elements, Held)
        block, self.state = piece.elements.block(), piece.after
        if self._layout is None:
            self._held.append(piece.elements)
        else:
            if not self._layout.fits(block):
                raise SchemaChanged(
                    f"{block.where(0)} has {block.schema} where the source promised {self._layout.schema}, so that it "
                    "cannot be kept in a row store. Shuffle by windows with window=."
                )
            self._copy(block)
        self.rows += block.nrows
        stored = block.nbytes if self._layout is None else block.nrows * self._layout.nbytes
        self._nbytes += stored
        self._held_nbytes += stored + block.nrows * _SORT_NBYTES

    def _copy(self, block: Block) -> None:
        assert self._layout is not None and self._records is not None
        end = self.rows + block.nrows
        if end > len(self._records):  # the last block of a run goes over its border
            longer = _pages(end, self._layout.dtype)
            longer[: self.rows] = self._records[: self.rows]
            self._records = longer
        into = self._records[self.rows : end]
        pairs = [(into[field], block.columns[name]) for name, field in self._layout.fields.items()]
        for part in self._layout.parts(block.nrows):
            for field, column in pairs:
                field[part] = column[part]

    def write(self, writer: RunWriter) -> None:
        """Sort by bucket, keeping the order inside each, and append."""
        numbers = np.arange(self.before, self.before + self.rows, dtype=np.uint64)
        buckets = (hashed(numbers) >> np.uint64(64 - BUCKETS.bit_length() + 1)).astype(np.uint16)
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=BUCKETS)
        note = {"rows": self.before + self.rows, "state": self.state}
        if self._layout is not None and self._records is not None:
            # Buckets of one size a row: bytes follow from the counts, and slices keep the copy small.
            step = max(1, _SLICE_NBYTES // max(1, self._layout.nbytes))
            records = self._records
            # take: indexing with an array copies records field by field, much slower.
            parts = (records.take(order[at : at + step]).view(np.uint8).data for at in range(0, self.rows, step))
            writer.append(parts, counts * self._layout.nbytes, note)
        else:
            encoded = self._encoded(order, counts)
            writer.append(encoded, np.array([len(part) for part in encoded], np.int64), note)
        self.before, self.rows, self._nbytes, self._held_nbytes = self.before + self.rows, 0, 0, 0

    def _encoded(self, order: np.ndarray, counts: np.ndarray) -> list[bytes]:
        if not self.rows:
            return [b""] * BUCKETS
        whole = Block.concat([held.block() for held in self._held]).take(order)
        self._held = []
        ends = np.cumsum(counts)
        return [
            encode_block(whole.slice(int(end - count), int(end))) if count else b""
            for end, count in zip(ends, counts, strict=True)
        ]


def _pages(rows: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An array on pages of its own, which go back to the system with it: malloc would keep them."""
    return np.frombuffer(mmap.mmap(-1, max(1, rows * dtype.itemsize)), dtype, rows)


def _check_room(writer: RunWriter, source: UnitSource, run: _Run) -> None:
    """Refuse as soon as it is clear that the rest will not fit, and not when the disk is full."""
    free = writer.free_nbytes() - _KEPT_FREE_NBYTES
    needed = _whole(source, run, writer.nbytes + run.nbytes)
    if needed - writer.nbytes > free:
        raise writer.refuse(needed, free + writer.nbytes)


def _whole(source: UnitSource, run: _Run, so_far: int) -> int:
    """Bytes that the whole store will have, by what the units read so far have taken."""
    read = run.state["next"] - len(run.state["open"]) if run.state else 0
    return max(so_far, so_far * source.num_units() // read) if read > 0 else so_far

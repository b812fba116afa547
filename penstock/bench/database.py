"""Databases in place of files: what they give by themselves, and rows at hand in place of a page cache.

Covers: streaming a query with nothing done to its rows, holding some of them in memory, shaping those again and again.
Does not cover: files (limits.py), the pipeline (measure.py).

A server's caches are not ours to empty, so that there is no cold and warm here. What files in memory are for files,
rows that were fetched before are for a database: what the pipeline waits more than with those is the database.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from penstock.bench.limits import HELD_NBYTES, READERS, in_threads, leased
from penstock.bench.sample import BenchSubject, Sampled, SampledUnits, cut_blocks
from penstock.core.block import Block
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers
from penstock.core.wrapped_source import WrappedUnits
from penstock.dataset import Dataset
from penstock.sources.sql.source import SqlSource


class HeldRows(WrappedUnits):
    """Rows that were fetched before: opening a unit shapes and decodes it, and waits for nobody."""

    def __init__(self, source: SqlSource, fetched: list[pa.RecordBatch], rows: int | None) -> None:
        super().__init__(source)
        self.fetched, self.rows, self._shaped = fetched, rows, source.shaped

    @property
    def label(self) -> str:
        return f"rows at hand of {self.source.label}"

    def num_units(self) -> int:
        return len(self.fetched)

    def num_rows(self) -> int | None:
        return sum(len(batch) for batch in self.fetched)

    def one_block(self, unit: int) -> bool:
        return self.rows is None

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        blocks = iter([self._shaped(self.fetched[unit], buffers)])
        yield from itertools.islice(cut_blocks(blocks, self.rows) if self.rows else blocks, part, None)

    def fingerprint(self) -> str:
        return f"{self.label} {self.source.fingerprint()}"


@contextmanager
def at_hand(subject: BenchSubject) -> Iterator[tuple[Dataset, Sampled | HeldRows]]:
    """The sample without its storage: rows of a database in leased memory. Files are as they are: memory has them."""
    sampled = subject.source
    if not isinstance(sampled, SampledUnits) or not isinstance(sampled.source, SqlSource):
        yield subject.dataset, sampled
        return
    with leased(HELD_NBYTES + BLOCK_NBYTES, "bench database"):
        fetched: list[pa.RecordBatch] = []
        held = 0
        for batch in _fetched(sampled.source, sampled.units, sampled.blocks):
            fetched.append(batch)
            held += batch.nbytes
            if held >= HELD_NBYTES:
                break
        source = HeldRows(sampled.source, fetched, sampled.rows)
        yield Dataset.of(source), source


def _fetched(source: SqlSource, units: np.ndarray, blocks: int) -> Iterator[pa.RecordBatch]:
    for unit in units:
        yield from itertools.islice(source.fetched(int(unit)), blocks)


def stream_rate(source: SqlSource, units: np.ndarray, seconds: float) -> float | None:
    """Bytes a second, as fetched, that the database gives to several connections when nothing is done with them."""
    lock, done = threading.Lock(), [0]
    todo = itertools.cycle(units.tolist())
    began = time.perf_counter()

    def read() -> None:
        while True:
            with lock:
                unit = next(todo)
            for batch in source.fetched(int(unit)):
                with lock:
                    done[0] += batch.nbytes
                if time.perf_counter() - began > seconds:
                    return
            if time.perf_counter() - began > seconds:
                return

    count = min(READERS, len(units))  # a range for each: the same one twice at a time would be the server's cache
    with leased(count * source.unit_nbytes(0), "bench database"):
        in_threads(read, count)
    took = time.perf_counter() - began
    return done[0] / took if done[0] and took > 0 else None

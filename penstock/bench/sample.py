"""A sample of a dataset: few enough bytes to try things on, spread over all of it.

Covers: sources that show some rows or units of another source, the files behind them, their sizes.
Does not cover: measuring (measure.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import DataError, NotFound
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, RowSource, UnitSource
from penstock.core.wrapped_source import WrappedRows, WrappedUnits, closing
from penstock.dataset import Dataset
from penstock.plan.steps import Read
from penstock.sources.images.source import ImageSource
from penstock.sources.sql.source import SqlSource
from penstock.sources.storage import files as storage

SAMPLE_NBYTES = 128_000_000
"""Stored bytes of a sample."""

SAMPLE_OF = "sample of "
"""What the names of samples begin with."""

MOST_ROWS = 200_000
MOST_FILES = 10_000


class SampledRows(WrappedRows):
    """Some rows of a `RowSource`, evenly spread."""

    def __init__(self, source: RowSource, rows: np.ndarray) -> None:
        super().__init__(source)
        self.rows = rows

    @property
    def label(self) -> str:
        return SAMPLE_OF + self.source.label

    def num_rows(self) -> int:
        return len(self.rows)

    def fetch(self, rows: np.ndarray) -> Any:
        return self.source.fetch(self.rows[rows])

    def fingerprint(self) -> str:
        return f"sample of {len(self.rows)} of {self.source.fingerprint()}"


class SampledUnits(WrappedUnits):
    """Some units of a `UnitSource`, evenly spread, of each at most so many blocks, cut to `rows` rows if given."""

    def __init__(self, source: UnitSource, units: np.ndarray, blocks: int, rows: int | None = None) -> None:
        super().__init__(source)
        self.units, self.blocks, self.rows = units, blocks, rows

    @property
    def label(self) -> str:
        return SAMPLE_OF + self.source.label

    def num_units(self) -> int:
        return len(self.units)

    def num_rows(self) -> int | None:
        return None

    def unit_nbytes(self, unit: int) -> int:
        return self.source.unit_nbytes(int(self.units[unit]))

    def one_block(self, unit: int) -> bool:
        return self.rows is None and (self.blocks == 1 or super().one_block(int(self.units[unit])))

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        # Cut blocks are counted from the start of the unit: how many a block gives is known only when it is read.
        blocks, rows = self.source.open(int(self.units[unit]), 0 if self.rows else part, buffers), self.rows
        if rows is None:
            return closing(blocks, lambda found: itertools.islice(found, max(0, self.blocks - part)))
        return closing(
            blocks,
            lambda found: itertools.islice(cut_blocks(itertools.islice(found, self.blocks), rows), part, None),
        )

    def fingerprint(self) -> str:
        return f"sample of {len(self.units)} x {self.blocks} ({self.rows}) of {self.source.fingerprint()}"


Sampled = SampledRows | SampledUnits


def cut_blocks(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """Blocks in pieces of at most so many rows."""
    for block in blocks:
        yield from (block.slice(at, at + rows) for at in range(0, block.nrows, rows))


@dataclass(frozen=True)
class BenchSubject:
    """What is measured: the sample, the files that it lies in (none for a database), what is known of the whole."""

    dataset: Dataset
    source: Sampled
    files: tuple[str, ...]
    rows: int | None
    nbytes: int | None
    row_stored: float | None
    """Stored bytes of one row, as far as one can tell without reading everything."""

    @property
    def images(self) -> bool:
        """Whether these are image files, one a row."""
        return isinstance(self.source.source, ImageSource)

    @property
    def database(self) -> bool:
        """Whether rows come from a database, so that there are no files."""
        return isinstance(self.source.source, SqlSource)


def subject_of(
    dataset: Dataset, path: str, most_nbytes: int = SAMPLE_NBYTES, *, rows: int | None = None
) -> BenchSubject:
    """The sample of a dataset that a reader has just made; units in blocks of `rows` rows if that is given."""
    step = dataset.node.step
    if not isinstance(step, Read):
        raise DataError("Only a dataset as a reader returns it can be sampled.")
    source = step.source
    if isinstance(source, RowSource):
        return _of_rows(source, path, most_nbytes)
    return _of_units(source, path, most_nbytes, rows)


def _of_rows(source: RowSource, path: str, most_nbytes: int) -> BenchSubject:
    total = source.num_rows()
    if not total:
        raise NotFound(f"{path!r} holds no rows.")
    each = max(1, source.fetch_nbytes(256) // 256)
    count = max(1, min(total, MOST_ROWS, most_nbytes // each))
    rows = np.unique(np.linspace(0, total - 1, count).astype(np.int64))
    sampled = SampledRows(source, rows)
    if isinstance(source, ImageSource):
        files = tuple(source.files.path(int(row)) for row in rows)
        nbytes = round(_sizes(files) / len(files) * total)
    else:
        files = tuple(storage.expand(path)[:MOST_FILES])
        nbytes = _sizes(files)
    return BenchSubject(Dataset.of(sampled), sampled, files, total, nbytes, nbytes / total)


def _of_units(source: UnitSource, path: str, most_nbytes: int, cut: int | None) -> BenchSubject:
    total = source.num_units()
    if not total:
        raise NotFound(f"{path!r} holds no data.")
    each = max(1, source.unit_nbytes(0))
    count = max(1, min(total, most_nbytes // each))
    units = np.unique(np.linspace(0, total - 1, count).astype(np.int64))
    blocks = max(1, most_nbytes // (BLOCK_NBYTES * len(units)))
    sampled = SampledUnits(source, units, blocks, cut)
    if isinstance(source, SqlSource):
        return BenchSubject(Dataset.of(sampled), sampled, (), source.num_rows(), None, _row_fetched(source, units))
    files = tuple(storage.expand(path)[:MOST_FILES])
    nbytes, rows = _sizes(files), source.num_rows()
    row_stored = nbytes / rows if rows else _row_stored(SampledUnits(source, units, blocks), nbytes / total)
    return BenchSubject(Dataset.of(sampled), sampled, files, rows, nbytes, row_stored)


def _row_stored(sampled: SampledUnits, unit_stored: float) -> float | None:
    """Stored bytes of a row by the rows of one unit; None if a unit is cut off in the sample."""
    rows = blocks = 0
    for block in sampled.open(0):
        rows, blocks = rows + block.nrows, blocks + 1
    return unit_stored / rows if rows and blocks < sampled.blocks else None


def _row_fetched(source: SqlSource, units: np.ndarray) -> float | None:
    """Bytes of a row as the database gives it."""
    for unit in units:
        for batch in source.fetched(int(unit)):
            if len(batch):
                return float(batch.nbytes / len(batch))
    return None


def _sizes(files: tuple[str, ...]) -> int:
    return sum(storage.file_size(path) for path in files)

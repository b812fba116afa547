"""Tar files of samples as a source: rows by an index, or streams.

Covers: `TarRows` (plain local files: any sample for itself) and `TarStream` (compressed and remote files).
Does not cover: finding samples (index.py), decoding them (columns.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData
from penstock.core.sizes import size
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, blocks_from
from penstock.sources.records.shards import IndexedShards, StreamedShards
from penstock.sources.records.span_index import fetch_estimate, place
from penstock.sources.tar.columns import Sample, SampleParser, sample_in, sample_of
from penstock.sources.tar.index import Member, stream_samples

KIND = "webdataset"


@dataclass(frozen=True)
class FetchedSamples:
    """The stretches of some samples, and where they stand; None is a sample that is too large to be read."""

    data: list[bytes | None]
    wheres: tuple[Sequence[str], np.ndarray, np.ndarray]

    @property
    def nbytes(self) -> int:
        return sum(len(data) for data in self.data if data is not None)

    def where(self, row: int) -> str:
        paths, files, offsets = self.wheres
        return place(paths[int(files[row])], int(offsets[row]))


class TarRows(IndexedShards[SampleParser, int]):
    """A `RowSource`: each sample is one stretch of a plain tar file. The rule is the longest sample that is read."""

    kind = KIND

    def fetch_nbytes(self, rows: int) -> int:
        return fetch_estimate(np.minimum(self.index.sizes(), self.rule), rows)

    def fetch(self, rows: np.ndarray) -> FetchedSamples:
        """Read the stretches of the rows, neighbours in one read. Samples above the limit are not read."""
        rows = np.asarray(rows, np.int64)
        files, offsets, lengths = self.index.locate(rows)
        data: list[bytes | None] = [None] * len(rows)
        for file in np.unique(files):
            mine = np.flatnonzero((files == file) & (lengths <= self.rule))
            ranges = [(int(offsets[i]), int(lengths[i])) for i in mine]
            if ranges:
                for i, piece in zip(mine, self.index.read_ranges(int(file), ranges), strict=True):
                    data[i] = piece
        return FetchedSamples(data, (self.paths, files, offsets))

    def _samples(self, fetched: FetchedSamples) -> list[Sample]:
        limit = size(self.rule)
        found = []
        for row, data in enumerate(fetched.data):
            where = fetched.where(row)
            if data is None:
                found.append(Sample("", where, {}, f"the sample is larger than max_sample={limit}"))
            else:
                found.append(sample_in(data, where, limit))
        return found

    def decode(self, fetched: FetchedSamples, buffers: Buffers = NEW_MEMORY) -> Block:
        return self.parser.block(self._samples(fetched), self.on_error, buffers)

    def decode_into(
        self, fetched: FetchedSamples, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY
    ) -> None:
        self.parser.write(self._samples(fetched), out, self.on_error, buffers)


class TarStream(StreamedShards[SampleParser, int]):
    """A `UnitSource` over files that are read from their start: a unit is a file."""

    kind = KIND

    def unit_nbytes(self, unit: int) -> int:
        """A block stored and decoded, and one more sample that ends it."""
        return 3 * BLOCK_NBYTES + self.parser.row_nbytes

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The file's blocks. Those before `part` are read but not decoded."""
        self.check(unit)
        found = stream_samples(self.paths[unit], self.compressions[unit], self.rule)
        try:
            pieces = self._blocks(unit, found)
            yield from blocks_from(pieces, part, lambda samples: self.parser.block(samples, self.on_error, buffers))
            self.check(unit)
        finally:
            found.close()  # type: ignore[attr-defined]

    def _blocks(self, unit: int, found: Iterator[tuple[str, list[Member]]]) -> Iterator[list[Sample]]:
        """Samples in blocks: about 8 MB stored, or less where that would become more than 8 MB decoded."""
        limit, most = size(self.rule), max(1, BLOCK_NBYTES // max(self.parser.row_nbytes, 1))
        samples: list[Sample] = []
        stored = 0
        while True:
            try:
                group = next(found, None)
            except BadData as error:
                self.check(unit)
                if samples:
                    yield samples
                self.on_error.bad(error)
                return
            if group is not None:
                key, found_members = group
                where = place(self.paths[unit], found_members[0].header)
                samples.append(sample_of(key, found_members, where, limit))
                stored += sum(len(data) for data in samples[-1].data.values())
            if samples and (group is None or stored >= BLOCK_NBYTES or len(samples) >= most):
                ready, samples, stored = [samples], [], 0
                yield ready.pop()
            if group is None:
                return

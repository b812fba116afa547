"""TFRecord files as a source, in one of three ways.

Covers: `TFRecordRows` (any record for itself), `TFRecordUnits` (stretches of frames), `TFRecordStream` (whole files).
Does not cover: finding frames (index.py), parsing (columns.py), choosing the way
(read/tfrecord.py).

Large records (images, more than 4 KB on average) are rows: each is read for itself, so that the shuffle is exact and a
position is one number. Small records (float examples) are read in stretches of about 8 MB, one kernel call each,
because reading single ones would cost more than parsing them. Compressed files have no addresses: each is one unit
that is read from its start, in bounded pieces. Remote files are streamed too unless an index is asked for, since making
one means reading everything once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData
from penstock.core.schema import Schema
from penstock.core.source import BLOCK_NBYTES, NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.native.tfrecord import FRAME
from penstock.sources.listing.sorter import chunks
from penstock.sources.records.shards import IndexedShards, StreamedShards
from penstock.sources.records.span_index import SpanIndex, fetch_estimate, place
from penstock.sources.tfrecord.columns import Frames
from penstock.sources.tfrecord.index import FrameWalk, stream

KIND = "tfrecord"

STREAM_ROWS = 65536
"""Records in one block of a stream at most."""


class RecordParser(Protocol):
    """From frames to blocks: ExampleParser or RawParser. Its `repr` differs where its blocks would."""

    @property
    def schema(self) -> Schema: ...

    @property
    def row_nbytes(self) -> int: ...

    def block(self, frames: Frames, on_error: OnError, buffers: Buffers = NEW_MEMORY) -> Block: ...

    def write(
        self, frames: Frames, out: Mapping[str, np.ndarray], on_error: OnError, buffers: Buffers = NEW_MEMORY
    ) -> None: ...


@dataclass(frozen=True)
class FetchedFrames:
    """The frames of some rows, one after the other."""

    data: bytes
    offsets: np.ndarray
    lengths: np.ndarray
    wheres: tuple[Sequence[str], np.ndarray, np.ndarray]

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def frames(self) -> Frames:
        """As the parser takes them."""
        paths, files, places = self.wheres
        buf = np.frombuffer(self.data, np.uint8)
        return Frames(buf, self.offsets, self.lengths, lambda i: place(paths[int(files[i])], int(places[i])))


class TFRecordRows(IndexedShards[RecordParser, FrameWalk]):
    """A `RowSource` over indexed files."""

    kind = KIND

    def fetch_nbytes(self, rows: int) -> int:
        """The stored bytes twice: once as they are read and once side by side."""
        return 2 * fetch_estimate(self.index.sizes(), rows)

    def fetch(self, rows: np.ndarray) -> FetchedFrames:
        """Read the frames of the rows, neighbours in one read."""
        data, files, places, lengths = self.index.read(np.asarray(rows, np.int64), FRAME)
        stored = np.array([len(piece) for piece in data], np.int64)
        lengths[stored != lengths + FRAME] = -1  # the file shrank: the parser reports the row
        offsets = np.cumsum(stored) - stored
        return FetchedFrames(b"".join(data), offsets, lengths, (self.paths, files, places))

    def decode(self, fetched: FetchedFrames, buffers: Buffers = NEW_MEMORY) -> Block:
        return self.parser.block(fetched.frames(), self.on_error, buffers)

    def decode_into(self, fetched: FetchedFrames, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        self.parser.write(fetched.frames(), out, self.on_error, buffers)


class TFRecordUnits(IndexedShards[RecordParser, FrameWalk]):
    """A `UnitSource` over indexed files: a unit is a stretch of frames that is parsed at once."""

    kind = KIND

    def __init__(self, index: SpanIndex, parser: RecordParser, rule: FrameWalk, on_error: OnError, name: str) -> None:
        super().__init__(index, parser, rule, on_error, name)
        self._clear()

    def _clear(self) -> None:
        self._units: np.ndarray | None = None

    @property
    def units(self) -> np.ndarray:
        """(file, first record, records, offset, bytes) of each unit."""
        if self._units is None:
            self.index.tell_damage(self.on_error)
            # Joined now and then: an array for each of a million files would weigh more than the units.
            files = chunks(range(len(self.paths)), 4096)
            self._units = np.concatenate([np.concatenate([self._cut(file) for file in some]) for some in files])
        return self._units

    def _cut(self, file: int) -> np.ndarray:
        """Units of one file: about 8 MB stored, or less where that would become more than 8 MB parsed."""
        spans = self.index.spans(file)
        if not len(spans):
            return np.empty((0, 5), np.int64)
        nbytes = int(spans[-1]["offset"]) + int(spans[-1]["length"]) + FRAME
        parsed = self.parser.row_nbytes * len(spans)
        step = max(1, int(BLOCK_NBYTES * min(1.0, nbytes / max(parsed, 1))))
        # By bisection, because np.searchsorted would copy the mapped column into memory.
        found = {bisect_left(spans, at, key=lambda span: span["offset"]) for at in range(0, nbytes, step)}
        firsts = np.array(sorted(found - {len(spans)}), np.int64)
        ends = np.append(firsts[1:], len(spans))
        begin = spans["offset"][firsts]
        after = np.append(begin[1:], nbytes)
        return np.stack([np.full(len(firsts), file), firsts, ends - firsts, begin, after - begin], axis=1)

    def num_units(self) -> int:
        return len(self.units)

    def unit_nbytes(self, unit: int) -> int:
        """Stored bytes, parsed bytes, and 16 bytes a record to say where it lies."""
        _, _, rows, _, nbytes = self.units[unit]
        return int(2 * nbytes + rows * (self.parser.row_nbytes + 32))

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The one block of a unit."""
        if part == 0:
            yield self._block(unit, buffers)

    def _block(self, unit: int, buffers: Buffers) -> Block:
        """Read and parse a unit. Not part of the generator, which would keep what was read until its next turn."""
        file, first, rows, begin, nbytes = (int(n) for n in self.units[unit])
        spans = self.index.spans(file)[first : first + rows]
        offsets = spans["offset"] - begin
        lengths = spans["length"].astype(np.int64)
        path = self.paths[file]
        buf = np.frombuffer(self.index.read_ranges(file, [(begin, nbytes)])[0], np.uint8)
        frames = Frames(buf, offsets, lengths, lambda i: place(path, begin + int(offsets[i])))
        return self.parser.block(frames, self.on_error, buffers)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_units"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


class TFRecordStream(StreamedShards[RecordParser, FrameWalk]):
    """A `UnitSource` over files that are read from their start: a unit is a file."""

    kind = KIND

    @property
    def _block_rows(self) -> int:
        return max(1, min(STREAM_ROWS, BLOCK_NBYTES // max(self.parser.row_nbytes, 1)))

    def unit_nbytes(self, unit: int) -> int:
        """A block stored (twice while it is cut), parsed, and the piece read ahead."""
        return 3 * BLOCK_NBYTES + self._block_rows * (self.parser.row_nbytes + 32)

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The file's blocks. Those before `part` are read and cut but not parsed."""
        path, compression = self.paths[unit], self.compressions[unit]
        self.check(unit)
        found = stream(path, compression, self.rule, nbytes=BLOCK_NBYTES, rows=self._block_rows)
        try:
            sound = self._sound(unit, found)
            yield from blocks_from(sound, part, lambda frames: self.parser.block(frames, self.on_error, buffers))
            self.check(unit)
        finally:
            found.close()  # type: ignore[attr-defined]

    def _sound(self, unit: int, found: Iterator[Frames]) -> Iterator[Frames]:
        """Frames up to the first damage, which is reported."""
        try:
            yield from found
        except BadData as error:
            self.check(unit)
            self.on_error.bad(error)

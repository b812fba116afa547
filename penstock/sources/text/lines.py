"""Files of lines, cut into units: byte ranges of plain files, whole compressed files.

Covers: which unit is which range, whole lines of a unit in pieces of bounded bytes, where each line is.
Does not cover: what the lines mean (sources/json/source.py, source.py).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import starmap
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, InvalidInput
from penstock.core.sizes import size
from penstock.core.source import Buffers
from penstock.sources.csv.split import OUTSIDE, Cutter, Quoting, Stretch, stream_lines
from penstock.sources.storage import files as storage
from penstock.sources.storage.compression import compression_of, open_decompressed
from penstock.sources.storage.unchanged import Unchanged
from penstock.sources.text.scattered import Spans, TextPieces, joined, piece_nbytes

RANGE_NBYTES = 8_000_000
LINES = Quoting(delimiter=-1, quote=None)
"""Every newline ends a line."""


class LineFiles:
    """Units of lines over several files. Sizes are asked for at first use."""

    def __init__(self, paths: Sequence[str], max_line: int) -> None:
        self.paths, self.max_line, self.range_nbytes = paths, max_line, RANGE_NBYTES
        self.growth = 1.0  # bytes of a block for each byte of text: whoever knows it says so before pieces are cut
        self.unchanged = Unchanged(len(paths))

    def through(self, cache: ByteCache) -> Self:
        """The same files, the remote ones read through a cache."""
        other = copy.copy(self)
        other.paths = storage.through(self.paths, cache)
        other.__dict__.pop("pieces", None)  # cut again, of those files
        return other

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of each file."""
        return np.fromiter(starmap(self.unchanged.check, enumerate(self.paths)), np.int64, len(self.paths))

    @cached_property
    def first_unit(self) -> np.ndarray:
        """The number of each file's first unit, and the number of all units."""
        packed = np.fromiter((compression_of(path) is not None for path in self.paths), np.bool_, len(self.paths))
        counts = np.where(packed, 1, np.maximum(1, -(-self.sizes // self.range_nbytes)))
        return np.concatenate(([0], np.cumsum(counts)))

    @cached_property
    def pieces(self) -> TextPieces | None:
        """Small ranges for shuffles; None where a file is compressed."""
        if any(compression_of(path) is not None for path in self.paths):
            return None
        nbytes = piece_nbytes(self.range_nbytes, self.growth, remote=storage.any_remote(self.paths))
        return TextPieces(self.paths, self.sizes, nbytes, self.max_line, self.unchanged)

    def pieces_per_block(self) -> int:
        """As many as a unit has text."""
        return 1 if self.pieces is None else max(1, self.range_nbytes // self.pieces.nbytes)

    def scattered(self, pieces: np.ndarray, buffers: Buffers) -> tuple[Spans, Stretch, list[BadData]]:
        """Whole lines of scattered pieces as one text, where they lie, and lines without an end."""
        assert self.pieces is not None
        files, which = self.pieces.locate(pieces)
        found = self.pieces.read(files, which, LINES, lambda file, piece: None)
        paths = [self.paths[file] for file in files.tolist()]
        lines, spans, errors = joined(paths, found, self.pieces.nbytes_of(len(files)), buffers)
        return spans, lines, errors

    def text_nbytes_of_all(self) -> int:
        """Bytes of text in all files; compressed text is taken for four times as much."""
        packed = [compression_of(path) is not None for path in self.paths]
        return int((self.sizes * np.where(packed, 4, 1)).sum())

    def locate(self, unit: int) -> tuple[int, int]:
        """File number and range number of a unit."""
        if not 0 <= unit < int(self.first_unit[-1]):
            raise InvalidInput(f"There is no unit {unit}: there are {int(self.first_unit[-1])}.")
        file = int(np.searchsorted(self.first_unit, unit, side="right")) - 1
        return file, unit - int(self.first_unit[file])

    def text_nbytes(self, unit: int) -> int:
        """Bytes of text in one piece of a unit."""
        file, which = self.locate(unit)
        if compression_of(self.paths[file]) is not None:
            return self.range_nbytes
        return min(self.range_nbytes, int(self.sizes[file]) - which * self.range_nbytes)

    def stretches(self, unit: int) -> Iterator[tuple[Spans, Stretch]]:
        """Whole lines of a unit: one piece for a range, as many as it takes for a compressed file."""
        file, which = self.locate(unit)
        path = self.paths[file]
        kind = compression_of(path)
        if kind is None:
            cutter = Cutter(path, int(self.sizes[file]), LINES, self.max_line)
            with self.unchanged.reading(file, path):
                lines = [cutter.read(which * self.range_nbytes, (which + 1) * self.range_nbytes, OUTSIDE)]
            yield _of(path, lines.pop())
            return
        self.unchanged.check(file, path)
        with open_decompressed(path, kind) as stream:
            try:
                found = stream_lines(path, stream, self.range_nbytes, LINES, self.max_line)
                yield from map(partial(_of, path), found)  # a loop would keep the lines: see core.source.blocks_from
                self.unchanged.check(file, path)
            except (OSError, pa.ArrowException) as error:
                self.unchanged.check(file, path)
                damage = BadData(path, f"the {kind} stream is damaged or cut short ({error})")
                yield _of(path, Stretch(b"", 0, 0, 0, damage))

    def too_long(self, error: BadData) -> BadData:
        """A line's end that was not found, in words for files without quotes; other damage as it is."""
        if "line is longer" not in error.reason:
            return error
        return BadData(
            error.where, f"a line is longer than max_line={size(self.max_line)}. Raise max_line=, or skip it."
        )

    def fingerprint(self, *told: object) -> str:
        """Changes with the files or with how they are cut."""
        cut = (self.range_nbytes, None if self.pieces is None else self.pieces.nbytes)
        digest = hashlib.blake2b(repr((cut, *told)).encode(), digest_size=16)
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()


def where(path: str, offset: int) -> str:
    """A line's place in words."""
    packed = compression_of(path) is not None
    return f"{path}, {'decompressed ' if packed else ''}byte {offset}"


def _of(path: str, lines: Stretch) -> tuple[Spans, Stretch]:
    return Spans.one(path, lines), lines


def line_starts(text: bytes | memoryview, *, blank: bool) -> np.ndarray:
    """Where the lines of a piece begin; lines of white space are left out unless `blank`."""
    codes = np.frombuffer(text, np.uint8)
    if not len(codes):
        return np.empty(0, np.int64)
    starts = np.concatenate(([0], np.flatnonzero(codes == 10) + 1))
    starts = starts[starts < len(codes)]
    if blank:
        return starts
    filled = np.concatenate(([0], np.cumsum((codes != 32) & (codes != 10) & (codes != 13) & (codes != 9))))
    ends = np.append(starts[1:], len(codes))
    return np.asarray(starts[filled[ends] > filled[starts]])

"""Files of lines, cut into units: byte ranges of plain files, whole compressed files.

Covers: which unit is which range, whole lines of a unit in pieces of bounded bytes, where each line is.
Does not cover: what the lines mean (sources/json.py, sources/text.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from penstock.core.errors import BadData, InvalidInput
from penstock.core.sizes import size
from penstock.sources import storage
from penstock.sources.csv_infer import compression_of, open_decompressed
from penstock.sources.csv_split import OUTSIDE, Cutter, Quoting, Stretch, stream_lines

RANGE_NBYTES = 8_000_000
LINES = Quoting(delimiter=-1, quote=None)
"""Every newline ends a line."""


class LineFiles:
    """Units of lines over several files. Sizes are asked for at first use."""

    def __init__(self, paths: Sequence[str], max_line: int) -> None:
        self.paths, self.max_line, self.range_nbytes = paths, max_line, RANGE_NBYTES

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of each file."""
        return np.fromiter(map(storage.file_size, self.paths), np.int64, len(self.paths))

    @cached_property
    def first_unit(self) -> np.ndarray:
        """The number of each file's first unit, and the number of all units."""
        packed = np.fromiter((compression_of(path) is not None for path in self.paths), np.bool_, len(self.paths))
        counts = np.where(packed, 1, np.maximum(1, -(-self.sizes // self.range_nbytes)))
        return np.concatenate(([0], np.cumsum(counts)))

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

    def stretches(self, unit: int) -> Iterator[tuple[str, Stretch]]:
        """Whole lines of a unit: one piece for a range, as many as it takes for a compressed file."""
        file, which = self.locate(unit)
        path = self.paths[file]
        kind = compression_of(path)
        if kind is None:
            cutter = Cutter(path, int(self.sizes[file]), LINES, self.max_line)
            yield path, cutter.read(which * self.range_nbytes, (which + 1) * self.range_nbytes, OUTSIDE)
            return
        with open_decompressed(path, kind) as stream:
            try:
                found = stream_lines(path, stream, self.range_nbytes, LINES, self.max_line)
                yield from map(partial(_of, path), found)  # a loop would keep the lines: see core.source.blocks_from
            except (OSError, pa.ArrowException) as error:
                damage = BadData(path, f"the {kind} stream is damaged or cut short ({error})")
                yield path, Stretch(b"", 0, 0, 0, damage)

    def too_long(self, error: BadData) -> BadData:
        """A line's end that was not found, in words for files without quotes; other damage as it is."""
        if "line is longer" not in error.reason:
            return error
        return BadData(
            error.where, f"a line is longer than max_line={size(self.max_line)}. Raise max_line=, or skip it."
        )

    def fingerprint(self, *told: object) -> str:
        """Changes with the files or with how they are cut."""
        digest = hashlib.blake2b(repr((self.range_nbytes, *told)).encode(), digest_size=16)
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()

    def name(self, kind: str) -> str:
        """A label for plans and messages."""
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{kind}({self.paths[0]}{more})"


def where(path: str, offset: int) -> str:
    """A line's place in words."""
    packed = compression_of(path) is not None
    return f"{path}, {'decompressed ' if packed else ''}byte {offset}"


def _of(path: str, lines: Stretch) -> tuple[str, Stretch]:
    return path, lines


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

"""Small byte ranges from all over some text files, read together and joined to one text of whole lines.

Covers: which piece is which range, reading many of them at once, where each byte of the joined text lies.
Does not cover: what the lines mean (sources/csv, sources/json, source.py), which pieces are read together (engine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.core.errors import BadData
from penstock.core.source import BLOCK_NBYTES, Buffers
from penstock.sources.csv.split import OUTSIDE, Cutter, Quoting, Stretch
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged

PIECES_WANTED = 768
"""Pieces in the rows that a shuffle mixes at a time (about three blocks): enough that a batch looks like the whole."""

LEAST_NBYTES, MOST_NBYTES = 12_000, 128_000
"""A piece of a local file. Reading one costs about 20 us, so that smaller ones would show in the speed."""

REMOTE_NBYTES = 64_000
"""A piece of a remote file: every piece is a request, however short, and some 400 of them are mixed at a time."""

TAIL_NBYTES = 2_048
"""Read past a piece for the end of its last line, and more where that is not enough."""

StateAt = Callable[[int, int], int | None]
"""The quote state at the start of (file, piece of it), or None where quotes do not matter."""


def piece_nbytes(range_nbytes: int, growth: float, *, remote: bool) -> int:
    """Bytes of text in a piece, for text that becomes `growth` bytes of rows a byte and is read in ranges."""
    mixed = 3 * BLOCK_NBYTES / max(growth, 0.01)
    wanted = REMOTE_NBYTES if remote else int(min(MOST_NBYTES, max(LEAST_NBYTES, mixed / PIECES_WANTED)))
    return max(4, min(wanted, range_nbytes // (16 if remote else 64)))


@dataclass(frozen=True)
class Spans:
    """Where the bytes of a text lie in files: those before `ends[i]`, in `paths[i]` from byte `offsets[i]` on."""

    paths: Sequence[str]
    offsets: np.ndarray
    ends: np.ndarray

    @classmethod
    def one(cls, path: str, lines: Stretch) -> Spans:
        """A text that is one stretch of a file."""
        return cls([path], np.array([lines.offset]), np.array([lines.stop - lines.start]))

    def place(self, at: int) -> tuple[str, int]:
        """The file and its byte for a position in the text."""
        which = min(int(np.searchsorted(self.ends, at, side="right")), len(self.ends) - 1)
        before = int(self.ends[which - 1]) if which else 0
        return self.paths[which], int(self.offsets[which]) + at - before

    def parts(self, lines: Stretch) -> Iterator[Stretch]:
        """The text again, cut where it was joined."""
        for begin, end in pairwise([0, *self.ends.tolist()]):
            yield Stretch(lines.data, begin, end, begin)

    def again(self) -> bytes:
        """The text, read once more: for messages, so that blocks need not keep it."""
        lengths = np.diff(self.ends, prepend=0)
        parts = zip(self.paths, self.offsets.tolist(), lengths.tolist(), strict=True)
        # A last line without a newline got one when the text was joined.
        return b"".join(storage.read_range(path, offset, length).ljust(length, b"\n") for path, offset, length in parts)


def joined(
    paths: Sequence[str], found: Iterable[Stretch], nbytes: int, buffers: Buffers
) -> tuple[Stretch, Spans, list[BadData]]:
    """Whole lines of several files as one text, each ended by a newline; and lines without an end.

    Each is copied as it comes, so that what is read next takes its place in memory: new pages cost more than copies.
    `nbytes` is what the text will take unless lines are very long. The text lies in a buffer of the run: malloc would
    keep some more of that size, for each heap.
    """
    text, at = buffers.empty((nbytes,), np.uint8), 0
    ends: list[int] = []
    offsets: list[int] = []
    errors: list[BadData] = []
    for lines in found:
        stop = at + lines.stop - lines.start
        if stop >= len(text):
            longer = buffers.empty((stop + 1 + len(text) // 4,), np.uint8)
            longer[:at] = text[:at]
            text = longer
        text[at:stop] = np.frombuffer(lines.text, np.uint8)
        if stop > at and text[stop - 1] != 10:
            text[stop], stop = 10, stop + 1
        at = stop
        ends.append(at)
        offsets.append(lines.offset)
        if lines.error is not None:
            errors.append(lines.error)
    spans = Spans(paths, np.array(offsets, np.int64), np.array(ends, np.int64))
    return Stretch(text.data, 0, at, 0), spans, errors


class TextPieces:
    """Pieces of plain files, numbered through; a piece owns the lines that start inside it."""

    def __init__(
        self, paths: Sequence[str], sizes: np.ndarray, nbytes: int, max_line: int, unchanged: Unchanged
    ) -> None:
        self.paths, self.sizes, self.nbytes, self.max_line = paths, sizes, nbytes, max_line
        self._unchanged = unchanged
        self.first = np.concatenate(([0], np.cumsum(np.maximum(1, -(-sizes // nbytes)))))

    def __len__(self) -> int:
        return int(self.first[-1])

    def locate(self, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The file of each piece, and its number in that file."""
        files = np.searchsorted(self.first, pieces, side="right") - 1
        return files, pieces - self.first[files]

    def nbytes_of(self, count: int) -> int:
        """What the text of so many pieces takes, unless lines are very long."""
        return count * (self.nbytes + TAIL_NBYTES)

    def read(self, files: np.ndarray, which: np.ndarray, quoting: Quoting, state: StateAt) -> Iterator[Stretch]:
        """The whole lines of each piece, in the order given, one after the other."""
        unquoted = Quoting(quoting.delimiter, None)
        reach = self.nbytes + TAIL_NBYTES
        firsts = np.flatnonzero(np.diff(files, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(files)], strict=True):
            file = int(files[first])
            path, nbytes = self.paths[file], int(self.sizes[file])
            self._unchanged.check(file, path)
            exact, plain = (Cutter(path, nbytes, kind, self.max_line) for kind in (quoting, unquoted))
            numbers = which[first:last].tolist()
            begins = [number * self.nbytes for number in numbers]
            ranges = [(begin - 1, reach + 1) if begin else (0, reach) for begin in begins]
            for number, begin, data in zip(numbers, begins, storage.each_range(path, ranges), strict=True):
                known = state(file, number)
                cutter = plain if known is None else exact
                yield cutter.cut(data, begin, begin + self.nbytes, OUTSIDE if known is None else known)
            self._unchanged.check(file, path)

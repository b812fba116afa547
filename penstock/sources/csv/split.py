"""Where the lines of a CSV file begin, also when fields hold newlines.

Covers: quotes and newlines in a piece of text, the quote state at the start of every range of a file, and cutting a
range or a decompressed stream into whole lines.
Does not cover: what the lines mean (arrow.py).

A range owns the lines that start inside it. Whether a range starts inside a quoted field depends on every quote before
it, so files that have quotes are scanned once, piece by piece, and one byte per range is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from penstock.core.errors import BadData, FileChanged
from penstock.core.sizes import size
from penstock.native.csv import count_byte
from penstock.sources.storage import files as storage

OUTSIDE, INSIDE, CLOSED = 0, 1, 2
"""Between quotes or not; CLOSED is outside, right behind a closing quote, where one more quote is an escaped one."""

NEWLINE = 10
BOM = b"\xef\xbb\xbf"
PIECE_NBYTES = 1_000_000
TAIL_NBYTES = 65_536


@dataclass(frozen=True)
class Quoting:
    """The bytes that decide about lines; `quote` None means that quotes are text like any other."""

    delimiter: int
    quote: int | None

    def toggles(self, text: np.ndarray, state: int, before: int) -> tuple[np.ndarray, int]:
        """Positions where quoted text begins or ends, and the state behind the last byte."""
        at = np.empty(0, np.int64) if self.quote is None else np.flatnonzero(text == self.quote)
        if not len(at):
            return at, INSIDE if state == INSIDE else OUTSIDE
        previous = text[at - 1]
        previous[0] = text[at[0] - 1] if at[0] else before
        opening = ((np.arange(len(at)) & 1) == 0) != (state == INSIDE)
        starts_field = (previous == self.delimiter) | (previous == NEWLINE) | (previous == 13)
        doubled = np.zeros(len(at), bool)
        doubled[1:] = np.diff(at) == 1
        doubled[0] = at[0] == 0 and state == CLOSED
        if (opening & ~starts_field & ~doubled).any():
            at = self._one_by_one(at, starts_field, doubled, state)
        inside = (len(at) & 1 == 1) != (state == INSIDE)
        closed = not inside and len(at) > 0 and at[-1] == len(text) - 1
        return at, INSIDE if inside else CLOSED if closed else OUTSIDE

    def _one_by_one(self, at: np.ndarray, starts_field: np.ndarray, doubled: np.ndarray, state: int) -> np.ndarray:
        """As above where a quote stands in the middle of an unquoted field: there it is text."""
        inside = state == INSIDE
        kept: list[int] = []
        for position, first, second in zip(at.tolist(), starts_field.tolist(), doubled.tolist(), strict=True):
            # A second quote reopens the field only if the first one closed it; that of the first byte stands before it.
            reopens = second and (kept[-1] == position - 1 if kept else position == 0)
            if inside or first or reopens:
                kept.append(position)
                inside = not inside
        return np.array(kept, np.int64)

    def newlines(self, text: np.ndarray, state: int, before: int) -> np.ndarray:
        """Positions of the newlines that end lines."""
        ends = np.flatnonzero(text == NEWLINE)
        toggles, _ = self.toggles(text, state, before)
        if not len(toggles):
            return ends if state != INSIDE else ends[:0]
        outside = ((np.searchsorted(toggles, ends) & 1) == 1) == (state == INSIDE)
        return np.asarray(ends[outside])


class QuoteIndex:
    """The quote state at the start of every range of a file, found by scanning as far as asked."""

    def __init__(self, quoting: Quoting, range_nbytes: int) -> None:
        self.quoting, self.range_nbytes = quoting, range_nbytes
        self._states: dict[str, bytearray] = {}
        self._before: dict[str, int] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def state(self, path: str, which: int) -> int:
        """The state before the first byte of range number `which`."""
        with self._lock:
            known = self._states.setdefault(path, bytearray([OUTSIDE]))
            while len(known) <= which:
                known.append(self._scan(path, len(known) - 1, known[-1]))
            return known[which]

    def _scan(self, path: str, which: int, state: int) -> int:
        at, end = which * self.range_nbytes, (which + 1) * self.range_nbytes
        before = self._before.get(path, NEWLINE)
        while at < end:
            piece = np.frombuffer(storage.read_range(path, at, min(PIECE_NBYTES, end - at)), np.uint8)
            if not len(piece):
                break
            if at == 0 and piece[:3].tobytes() == BOM:
                piece, at = piece[3:], 3
            if len(piece):
                state = self.quoting.toggles(piece, state, before)[1]
                before = int(piece[-1])
            at += len(piece)
        self._before[path] = before
        return state


@dataclass(frozen=True)
class Stretch:
    """Whole lines of a file: their bytes, where they start in the file, and the damage if the last had no end."""

    data: bytes | memoryview
    start: int
    stop: int
    offset: int
    error: BadData | None = None

    @property
    def text(self) -> memoryview:
        return memoryview(self.data)[self.start : self.stop]

    def has(self, byte: int | None) -> bool:
        """Whether a byte occurs in the lines."""
        return byte is not None and count_byte(np.frombuffer(self.text, np.uint8), byte) > 0

    def after(self, nbytes: int) -> Stretch:
        """The lines without the first bytes."""
        return Stretch(self.data, self.start + nbytes, self.stop, self.offset + nbytes, self.error)


@dataclass(frozen=True)
class Cutter:
    """Cuts one file into whole lines."""

    path: str
    size_nbytes: int
    quoting: Quoting
    max_line: int

    def read(self, begin: int, end: int, state: int) -> Stretch:
        """The lines that start between two offsets; `state` is the quote state at `begin`."""
        lead = 1 if begin else 0
        data = storage.read_range(self.path, begin - lead, min(end, self.size_nbytes) - begin + lead + TAIL_NBYTES)
        return self.cut(data, begin, end, state)

    def cut(self, data: bytes, begin: int, end: int, state: int) -> Stretch:
        """As `read`, of bytes that are there: those from `begin` on, and the one before it unless that is 0."""
        lead = 1 if begin else 0
        base, first = begin - lead, 0
        if begin == 0 and data[:3] == BOM:
            data, base = data[3:], 3
        ends = self._ends(data, lead, state)
        if begin:
            found = _next_newline(data, ends, 0)
            if found < 0 or base + found + 1 >= end:
                return Stretch(b"", 0, 0, begin)
            first = found + 1
        tail = TAIL_NBYTES
        while True:
            whole = base + len(data) >= self.size_nbytes
            found = -1 if whole and end >= self.size_nbytes else _next_newline(data, ends, end - 1 - base)
            if found >= 0:
                return Stretch(data, first, found + 1, base + first)
            if whole:
                return last_lines(self.path, data, first, base + first, self.quoting)
            left = self.max_line - (base + len(data) - end)
            if left < 0:
                return self._too_long(data, base, first, end)
            tail *= 2
            wanted = tail if 2 * tail <= left else left + 1  # no more than decides it, and no last copy for a few bytes
            more = storage.read_range(self.path, base + len(data), wanted)
            if not more:
                raise FileChanged(self.path, f"it had {self.size_nbytes} bytes and ends after {base + len(data)} now")
            data += more
            del more
            ends = self._ends(data, lead, state)

    def _ends(self, data: bytes, lead: int, state: int) -> np.ndarray | None:
        """The newlines that end lines, or None if all do; `state` holds behind the `lead` bytes."""
        if self.quoting.quote is None or (state != INSIDE and data.find(self.quoting.quote) < 0):
            return None
        text = np.frombuffer(data, np.uint8)
        ends = self.quoting.newlines(text[lead:], state, int(text[0]) if lead else NEWLINE) + lead
        return np.concatenate([[0], ends]) if lead and state != INSIDE and text[0] == NEWLINE else ends

    def _too_long(self, data: bytes, base: int, first: int, end: int) -> Stretch:
        """The lines before one that does not end within `max_line`, and the error that says so."""
        text = np.frombuffer(data, np.uint8)[first : end - base]  # behind it no line ends
        ends = self.quoting.newlines(text, OUTSIDE, NEWLINE)
        stop = first + (int(ends[-1]) + 1 if len(ends) else 0)
        return Stretch(data, first, stop, base + first, too_long(self.path, base + stop, self.max_line))


def _next_newline(data: bytes, ends: np.ndarray | None, at: int) -> int:
    """The first newline at or after `at` that ends a line, or -1."""
    if ends is None:
        return data.find(b"\n", max(at, 0))
    which = int(np.searchsorted(ends, at))
    return int(ends[which]) if which < len(ends) else -1


def line_number(path: str, offset: int) -> int:
    """The line of a plain file in which a byte lies, as editors count them."""
    count, at = 1, 0
    while at < offset:
        piece = storage.read_range(path, at, min(PIECE_NBYTES, offset - at))
        if not piece:
            break
        count, at = count + piece.count(b"\n"), at + len(piece)
    return count


def too_long(path: str, offset: int, max_line: int) -> BadData:
    """The error for a line without an end in sight."""
    return BadData(
        f"{path}, byte {offset}",
        f"a line is longer than {size(max_line)} (or a quote is never closed). "
        f"Raise max_line=, turn quoting off with quote=None, or skip it with on_error='skip'.",
    )


def last_lines(path: str, data: bytes, first: int, offset: int, quoting: Quoting) -> Stretch:
    """The lines up to a file's end. If a quote is still open there, those before it, and the error that says so."""
    text = np.frombuffer(data, np.uint8)[first:]
    if quoting.quote is None or quoting.toggles(text, OUTSIDE, NEWLINE)[1] != INSIDE:
        return Stretch(data, first, len(data), offset)
    ends = quoting.newlines(text, OUTSIDE, NEWLINE)
    stop = int(ends[-1]) + 1 if len(ends) else 0
    told = "a quote is never closed: the rest of the file is in it. Turn quoting off with quote=None"
    error = BadData(f"{path}, byte {offset + stop}", f"{told}, or leave the rest out with on_error='skip'")
    return Stretch(data, first, first + stop, offset, error)


def stream_lines(path: str, stream: BinaryIO, nbytes: int, quoting: Quoting, max_line: int) -> Iterator[Stretch]:
    """Cut a decompressed stream into stretches of whole lines of about `nbytes`."""
    left, offset, lost = b"", 0, False
    while True:
        fresh = stream.read(nbytes)
        data = left + fresh
        if offset == 0 and data[:3] == BOM:
            data, offset = data[3:], 3
        if not fresh:
            if data and not lost:
                yield last_lines(path, data, 0, offset, quoting)
            return
        ends = quoting.newlines(np.frombuffer(data, np.uint8), OUTSIDE, NEWLINE)
        if lost and len(ends):  # the rest of a line that was refused
            data, offset, lost = data[int(ends[0]) + 1 :], offset + int(ends[0]) + 1, False
            ends = ends[1:] - ends[0] - 1
        stop = int(ends[-1]) + 1 if len(ends) else 0
        ready = [Stretch(data, 0, stop, offset)] if stop else []
        left, offset = data[stop:], offset + stop
        del data, fresh, ends  # the holder of the stretch decides how long they live
        if ready:
            yield ready.pop()
        if lost or len(left) > max_line:
            if not lost:
                yield Stretch(b"", 0, 0, offset, too_long(path, offset, max_line))
            left, offset, lost = b"", offset + len(left), True

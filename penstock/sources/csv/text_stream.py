"""CSV files that are read from their start: compressed, in another encoding, or with comment lines.

Covers: what a file needs before it is plain UTF-8 text, and the stream that does it.
Does not cover: byte ranges of plain files (split.py).
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from penstock.core.errors import InvalidInput
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.split import NEWLINE, OUTSIDE, Quoting
from penstock.sources.storage import files as storage
from penstock.sources.storage.compression import compression_of, open_decompressed

PIECE_NBYTES = 262_144


@dataclass(frozen=True)
class Packing:
    """What has to be taken off a file: compression, encoding, comment lines."""

    compression: str | None
    encoding: str
    comment: str | None

    def __str__(self) -> str:
        return " and ".join(part for part in (self.compression, self.encoding) if part and part != "utf-8") or "text"


def packing(path: str, dialect: Dialect) -> Packing | None:
    """How a file is packed; None for plain UTF-8 text, which can be read in ranges."""
    found = Packing(compression_of(path), dialect.encoding, dialect.comment)
    return None if found == Packing(None, "utf-8", None) else found


def known_encoding(name: str) -> str:
    """Python's own name of an encoding."""
    try:
        found = codecs.lookup(name).name
    except LookupError as error:
        raise InvalidInput(f"encoding={name!r} is not known to Python.") from error
    return "utf-8" if found in ("utf-8", "ascii", "utf-8-sig") else found


def open_text(path: str, kind: Packing, quoting: Quoting) -> BinaryIO:
    """The file as a stream of UTF-8 text, unpacked as it is read."""
    if kind.compression is not None:
        stream: Any = open_decompressed(path, kind.compression)
    else:
        stream = pa.PythonFile(storage.open_file(path), mode="r")
    if kind.encoding != "utf-8":
        stream = pa.transcoding_input_stream(stream, kind.encoding, "utf-8")
    if kind.comment is not None:
        stream = io.BufferedReader(_WithoutComments(stream, kind.comment.encode(), quoting))
    return cast(BinaryIO, stream)


class _WithoutComments(io.RawIOBase):
    """A stream without the lines that begin with a comment sign (outside of quotes)."""

    def __init__(self, stream: Any, sign: bytes, quoting: Quoting) -> None:
        self._stream, self._pieces, self._held = stream, _kept(stream, sign, quoting), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._held))
        view[:count], self._held = self._held[:count], self._held[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _kept(stream: Any, sign: bytes, quoting: Quoting) -> Iterator[bytes]:
    left = b""
    while True:
        fresh = stream.read(PIECE_NBYTES)
        data = left + fresh
        left = b""
        if fresh:
            ends = quoting.newlines(np.frombuffer(data, np.uint8), OUTSIDE, NEWLINE)
            stop = int(ends[-1]) + 1 if len(ends) else 0
            data, left = data[:stop], data[stop:]
            if len(left) > 64_000_000:  # no line is that long: the reader says so
                data, left = data + left, b""
        yield without_comments(data, sign, quoting)
        if not fresh:
            return


def without_comments(text: bytes, sign: bytes, quoting: Quoting) -> bytes:
    """Whole lines, but for those that begin with the sign."""
    if not text.startswith(sign) and b"\n" + sign not in text:
        return text
    # A quote in a comment is no quote, so lines are taken one by one.
    kept, start = [], 0
    while start < len(text):
        if text.startswith(sign, start):
            end = text.find(b"\n", start) + 1 or len(text)
        else:
            rest = np.frombuffer(text, np.uint8)[start : start + 2_048]
            ends = quoting.newlines(rest, OUTSIDE, NEWLINE)
            if not len(ends) and start + len(rest) < len(text):
                ends = quoting.newlines(np.frombuffer(text, np.uint8)[start:], OUTSIDE, NEWLINE)
            end = start + int(ends[0]) + 1 if len(ends) else len(text)
            kept.append(text[start:end])
        start = end
    return b"".join(kept)

"""Text files: a sample is a line, or a whole file.

Covers: lines split over byte ranges, documents by file, encodings, text that cannot be decoded.
Does not cover: cutting files into lines (lines.py).
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_numbers import arrow_of
from penstock.core.block import Block
from penstock.core.errors import BadData, DataError, InvalidInput
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.sizes import size
from penstock.core.source import NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.core.tree import Tree
from penstock.sources.csv.split import Stretch
from penstock.sources.from_files import FileSetSource, PathSource, name_of
from penstock.sources.storage import files as storage
from penstock.sources.storage.compression import compression_of, open_decompressed
from penstock.sources.storage.unchanged import Unchanged
from penstock.sources.text.lines import LineFiles, line_starts, where
from penstock.sources.text.scattered import Spans

TREE: Tree = {"text": "text"}
SCHEMA = Schema((Field("text", OBJECT, text=True),), TREE)


def check_encoding(encoding: str, by: str) -> str:
    """The encoding's own name; those whose newline is not the byte 10 cannot be cut into lines."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise InvalidInput(f"encoding={encoding!r} is not known to Python.") from error
    if by == "line" and "\n".encode(name) != b"\n":
        raise InvalidInput(f"Text in {name} cannot be cut into lines; use by='document', or store it as UTF-8.")
    return name


class LineSource(FileSetSource[LineFiles]):
    """A `UnitSource` of lines, without their line ends."""

    def __init__(self, files: LineFiles, encoding: str, skip_blank: bool, on_error: OnError) -> None:
        super().__init__(files, name_of("text", files.paths), on_error)
        self.encoding, self.skip_blank = encoding, skip_blank

    def schema(self) -> Schema:
        return SCHEMA

    def num_units(self) -> int:
        return int(self.files.first_unit[-1])

    def num_rows(self) -> int | None:
        return None

    def unit_nbytes(self, unit: int) -> int:
        """The text, its newline mask and the lines; short lines cost four bytes of offset each."""
        return 6 * self.files.text_nbytes(unit) + 200_000

    def fingerprint(self) -> str:
        return self.files.fingerprint("text", self.encoding, self.skip_blank)

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The unit's lines; a block may be empty, so that parts keep their numbers."""
        yield from blocks_from(self.files.stretches(unit), part, self._block)

    def num_pieces(self) -> int:
        return 0 if self.files.pieces is None else len(self.files.pieces)

    def pieces_per_block(self) -> int:
        return self.files.pieces_per_block()

    def pieces_nbytes(self, count: int) -> int:
        """As for a unit of as much text."""
        assert self.files.pieces is not None
        return 6 * count * self.files.pieces.nbytes + 200_000

    def decoded_nbytes(self) -> int:
        return self.files.text_nbytes_of_all()

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """Lines of scattered pieces."""
        spans, lines, errors = self.files.scattered(pieces, buffers)
        for error in errors:
            self.on_error.bad(self.files.too_long(error))
        return self._block((spans, lines))

    def _block(self, piece: tuple[Spans, Stretch]) -> Block:
        spans, lines = piece
        if lines.error is not None:
            self.on_error.bad(self.files.too_long(lines.error))
        values, starts = split_lines(lines.text)
        kept = np.arange(len(values))
        if self.skip_blank:
            kept = np.flatnonzero(np.asarray(pc.binary_length(values)) > 0)
            values = values.take(arrow_of(kept))
        texts, bad = decode_text(values, self.encoding)
        for row, reason in bad.items():
            self.on_error.bad(BadData(where(*spans.place(int(starts[kept[row]]))), reason))
        if bad:
            good = np.setdiff1d(np.arange(len(kept)), list(bad))
            kept, texts = kept[good], texts.take(arrow_of(good))
        places = starts[kept]
        return Block({"text": texts}, TREE, lambda i: where(*spans.place(int(places[i]))))


def split_lines(text: memoryview) -> tuple[pa.Array, np.ndarray]:
    """Lines as bytes, line ends taken off in one pass over the whole piece, and where each began."""
    starts = line_starts(text, blank=True)
    whole = bytes(text)
    if b"\r" not in whole:  # the usual case: a line's offset is its start less the newlines before it
        offsets = np.append(starts - np.arange(len(starts)), len(whole) - whole.count(b"\n")).astype(np.int32)
        body = whole.replace(b"\n", b"")
        return pa.Array.from_buffers(
            pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(body)]
        ), starts
    codes = np.frombuffer(whole, np.uint8)
    ends = codes == 10
    returns = np.flatnonzero(ends[1:] & (codes[:-1] == 13)) if len(codes) else np.empty(0, np.int64)
    drop = ends.copy()
    drop[returns] = True
    if len(codes) and codes[-1] == 13:
        drop[-1] = True
    # An offset of a line is what is left of the text before it.
    gone = np.concatenate(([0], np.cumsum(drop)))
    offsets = np.append(starts - gone[starts], len(codes) - gone[-1]).astype(np.int32)
    body = codes[~drop]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers), starts


def decode_text(values: pa.Array, encoding: str) -> tuple[pa.Array, dict[int, str]]:
    """Bytes as text; those that cannot be decoded are empty and named."""
    if encoding == "utf-8":
        try:
            return values.cast(pa.string()), {}
        except pa.ArrowInvalid:
            pass  # some value is not UTF-8: the loop below finds out which
    bad: dict[int, str] = {}
    texts: list[str] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(value.decode(encoding))
        except UnicodeDecodeError as error:
            bad[row] = f"is not {encoding} text ({error.reason} at byte {error.start} of it)"
            texts.append("")
    return pa.array(texts, pa.string()), bad


class DocumentSource(PathSource):
    """A `RowSource` whose rows are whole files."""

    def __init__(self, paths: Sequence[str], encoding: str, max_document: int, on_error: OnError) -> None:
        super().__init__(paths, f"text({len(paths)} documents)", on_error)
        self.encoding, self.max_document = encoding, max_document
        self._unchanged = Unchanged(len(paths))

    def schema(self) -> Schema:
        return SCHEMA

    def num_rows(self) -> int:
        return len(self.paths)

    def fetch_nbytes(self, rows: int) -> int:
        """Twice the mean of a few files, for bytes and text."""
        step = max(1, len(self.paths) // 16)
        some = [storage.file_size(self.paths[i]) for i in range(0, len(self.paths), step)]
        return 2 * rows * (sum(some) // len(some) + 64)

    def fetch(self, rows: np.ndarray) -> tuple[np.ndarray, list[bytes | BadData]]:
        """The files' bytes."""
        return rows, [self._steady(int(row)) for row in rows]

    def _steady(self, row: int) -> bytes | BadData:
        path = self.paths[row]
        data = self._read(path)
        if isinstance(data, bytes) and not storage.is_remote(path):  # a store's files are read whole or not at all
            self._unchanged.check(row, path)
        return data

    def _read(self, path: str) -> bytes | BadData:
        try:
            kind = compression_of(path)
            if kind is None:
                nbytes = storage.file_size(path)
                data = storage.read_file(path) if nbytes <= self.max_document else b""
            else:
                with open_decompressed(path, kind) as stream:
                    data = stream.read(self.max_document + 1)
                nbytes = len(data)
        except (DataError, OSError, pa.ArrowException) as error:
            return BadData(path, f"cannot be read: {error}")
        if nbytes > self.max_document:
            return BadData(path, f"is larger than max_document={size(self.max_document)}; raise it, or skip the file")
        return data

    def decode(self, fetched: tuple[np.ndarray, list[bytes | BadData]], buffers: Buffers = NEW_MEMORY) -> Block:
        """Text of the files; those that cannot be read go to `on_error`."""
        texts: list[str] = []
        places: list[str] = []
        for row, data in zip(fetched[0], fetched[1], strict=True):
            path = self.paths[int(row)]
            try:
                if isinstance(data, BadData):
                    raise data
                texts.append(data.decode(self.encoding).removeprefix("\ufeff"))
                places.append(path)
            except UnicodeDecodeError as error:
                self.on_error.bad(BadData(path, f"is not {self.encoding} text ({error.reason} at byte {error.start})"))
            except BadData as error:
                self.on_error.bad(error)
        return Block({"text": pa.array(texts, pa.string())}, TREE, lambda i: places[i])

    def decode_into(self, fetched: Any, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        """Text has no fixed size, so the engine never asks for this."""
        raise InvalidInput("Text cannot be written into arrays of fixed size.")

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.encoding.encode(), digest_size=16)
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()

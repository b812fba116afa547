"""CSV files: byte ranges of about one block each, or one stream per compressed file.

Covers: `CsvSource`: units, types, projection, damaged rows, and the choice between the compiled kernel and PyArrow.
Does not cover: line boundaries (split.py), types (types.py), parsing (arrow.py, numbers.py).

Both parsers round correctly and give the same dtypes, so which of them read a range shows in its speed only.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column, Origin
from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, InvalidInput, SchemaChanged
from penstock.core.events import fell_back
from penstock.core.schema import Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError, blocks_from
from penstock.sources.csv import numbers as csv_kernel
from penstock.sources.csv import types as csv_infer
from penstock.sources.csv.arrow import Parser, Rows, row_offsets
from penstock.sources.csv.plan import CsvOptions, CsvPlan, make_plan
from penstock.sources.csv.rounding import is_large, may_hold_long_integer
from penstock.sources.csv.split import (
    BOM,
    OUTSIDE,
    TAIL_NBYTES,
    Cutter,
    QuoteIndex,
    Quoting,
    Stretch,
    line_number,
    stream_lines,
)
from penstock.sources.csv.text_stream import open_text, packing
from penstock.sources.csv.unseen_quotes import refuse_unseen
from penstock.sources.from_files import PathSource, name_of
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged
from penstock.sources.tables.blocks import TableShape
from penstock.sources.text.scattered import Spans, TextPieces, joined

HEADER_NBYTES = 65_536


class CsvSource(PathSource):
    """Rows of CSV files. A unit is a byte range of a plain file, or a whole compressed file."""

    def __init__(
        self, paths: Sequence[str], shape: TableShape, options: CsvOptions, on_error: OnError | None = None
    ) -> None:
        super().__init__(paths, name_of("csv", paths), on_error)
        self.shape, self.options = shape, options
        self._unchanged = Unchanged(len(paths))
        self._same_header: set[int] = set()
        self._quoted: set[int] = set()

    def through(self, cache: ByteCache) -> Self:
        other = super().through(cache)
        other.__dict__.pop("_pieces", None)  # cut again, of those files
        return other

    @cached_property
    def plan(self) -> CsvPlan:
        """Sizes, names and types: a few small reads, at first use."""
        sizes = np.fromiter(itertools.starmap(self._unchanged.check, enumerate(self.paths)), np.int64, len(self.paths))
        return make_plan(self.paths, sizes, self.shape, self.options)

    @cached_property
    def _index(self) -> QuoteIndex:
        return QuoteIndex(self.options.dialect.quoting, self.plan.piece_nbytes)

    @cached_property
    def _pieces(self) -> TextPieces:
        plan = self.plan
        return TextPieces(self.paths, plan.sizes, plan.piece_nbytes, self.options.max_line, self._unchanged)

    def schema(self) -> Schema:
        return self.plan.schema

    def num_units(self) -> int:
        return int(self.plan.first_unit[-1])

    def num_rows(self) -> int | None:
        return None

    def unit_nbytes(self, unit: int) -> int:
        """Text, parsed columns, and the block made of them."""
        file, which = self._locate(unit)
        text = self.plan.range_nbytes
        if packing(self.paths[file], self.options.dialect) is None:
            text = min(text, int(self.plan.sizes[file]) - which * text)
        return int((text + TAIL_NBYTES) * (2.5 + 2 * self.plan.growth))

    def num_pieces(self) -> int:
        return len(self._pieces) if self.plan.plain else 0

    def pieces_per_block(self) -> int:
        return self.plan.range_nbytes // self.plan.piece_nbytes

    def pieces_nbytes(self, count: int) -> int:
        """As for a range: the parts of the text are gone when it is parsed."""
        return int((count * self.plan.piece_nbytes + TAIL_NBYTES) * (2.5 + 2 * self.plan.growth))

    def decoded_nbytes(self) -> int:
        """What the text becomes; compressed text is taken for four times as much."""
        packed = [packing(path, self.options.dialect) is not None for path in self.paths]
        return int((self.plan.sizes * np.where(packed, 4, 1)).sum() * self.plan.growth)

    def read_pieces(self, pieces: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        """Scattered pieces, parsed in one call."""
        files, which = self._pieces.locate(pieces)
        paths = [self.paths[file] for file in files.tolist()]
        for file in np.unique(files).tolist():
            self._check_header(file)
        while True:
            exact = {file for file in files.tolist() if self._is_exact(file)}
            found = self._piece_lines(files, which, exact)
            lines, spans, errors = joined(paths, found, self._pieces.nbytes_of(len(files)), buffers)
            quoted = lines.has(self._quoting.quote)
            if quoted:
                for file, part in zip(files.tolist(), spans.parts(lines), strict=True):
                    if part.has(self._quoting.quote):
                        self._has_quotes(file, self.plan.piece_nbytes)
            if exact.issuperset(file for file in files.tolist() if self._is_exact(file)):
                break  # else a file proved to have quotes: they have to be counted from its start
        for error in errors:
            self.on_error.bad(error)
        return self._block(lines, spans, buffers, quoted=quoted)

    def _piece_lines(self, files: np.ndarray, which: np.ndarray, exact: Set[int]) -> Iterator[Stretch]:
        """The lines of pieces, without headers; quotes are minded in the `exact` files."""

        def state(file: int, piece: int) -> int | None:
            return self._index.state(self.paths[file], piece) if file in exact else None

        found = self._pieces.read(files, which, self._quoting, state)
        for file, piece, lines in zip(files.tolist(), which.tolist(), found, strict=True):
            if lines.error and self._quoting.quote is not None:  # perhaps a quoted newline is where it ends
                self._has_quotes(file, self.plan.piece_nbytes)
            yield self._body(lines) if piece == 0 else lines

    def _is_exact(self, file: int) -> bool:
        """Whether quotes are counted from the start of a file, because it has some."""
        return self._quoting.quote is not None and (self.plan.quotes or file in self._quoted)

    def _has_quotes(self, file: int, part_nbytes: int) -> None:
        """Count quotes in a file from now on. Parts of it that were read before may have been inside of some."""
        if self._is_exact(file):
            return
        self._quoted.add(file)
        refuse_unseen(self.paths[file], int(self.plan.sizes[file]), part_nbytes, self._quoting)

    def fingerprint(self) -> str:
        cut = (self.plan.range_nbytes, self.plan.piece_nbytes)
        digest = hashlib.sha256(repr((self.shape, self.options, cut)).encode())
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()[:32]

    def open(self, unit: int, part: int = 0, buffers: Buffers = NEW_MEMORY) -> Iterator[Block]:
        """The blocks of a unit: one for a range, as many as it takes for a compressed file."""
        file, which = self._locate(unit)
        path = self.paths[file]
        kind = packing(path, self.options.dialect)
        with self._unchanged.reading(file, path):
            self._check_header(file)
        if kind is None:
            if part == 0:
                yield self._range(file, which, buffers)
            return
        nbytes, quoting = self.plan.range_nbytes, self._quoting
        with open_text(path, kind, quoting) as stream:
            try:
                found = stream_lines(path, stream, nbytes, quoting, self.options.max_line)
                if part == 0:
                    yield from blocks_from(
                        islice(found, 1), 0, lambda lines: self._streamed(file, self._body(lines), buffers)
                    )
                yield from blocks_from(found, part, lambda lines: self._streamed(file, lines, buffers))
                self._unchanged.check(file, path)
            except (OSError, pa.ArrowInvalid, UnicodeError) as error:
                self._unchanged.check(file, path)
                self.on_error.bad(BadData(path, f"the {kind} stream is damaged or cut short ({error})"))

    def _streamed(self, file: int, lines: Stretch, buffers: Buffers) -> Block:
        return self._block(lines, Spans.one(self.paths[file], lines), buffers, streamed=True)

    def _locate(self, unit: int) -> tuple[int, int]:
        if not 0 <= unit < self.num_units():
            raise InvalidInput(f"{self.label} has no unit {unit}: there are {self.num_units()}.")
        file = int(np.searchsorted(self.plan.first_unit, unit, side="right")) - 1
        return file, unit - int(self.plan.first_unit[file])

    @property
    def _quoting(self) -> Quoting:
        quoting = self.options.dialect.quoting
        return quoting if self.options.newlines_in_values is not False else Quoting(quoting.delimiter, None)

    def _range(self, file: int, which: int, buffers: Buffers) -> Block:
        """One range. Quotes are counted from the start of the file only where there are any."""
        exact = self._quoting.quote is not None and self._is_exact(file)
        lines = self._lines(file, which, exact)
        if not exact and (lines.has(self._quoting.quote) or (lines.error and self._quoting.quote is not None)):
            self._has_quotes(file, self.plan.range_nbytes)
            lines = self._lines(file, which, exact=True)
        self._unchanged.check(file, self.paths[file])
        lines = self._body(lines) if which == 0 else lines
        return self._block(lines, Spans.one(self.paths[file], lines), buffers)

    def _lines(self, file: int, which: int, exact: bool) -> Stretch:
        path, nbytes = self.paths[file], self.plan.range_nbytes
        quoting = self._quoting if exact else Quoting(self._quoting.delimiter, None)
        state = self._index.state(path, which * nbytes // self.plan.piece_nbytes) if exact else OUTSIDE
        cutter = Cutter(path, int(self.plan.sizes[file]), quoting, self.options.max_line)
        return cutter.read(which * nbytes, (which + 1) * nbytes, state)

    def _body(self, lines: Stretch) -> Stretch:
        """The lines behind the header."""
        if not self.options.dialect.header:
            return lines
        return lines.after(self.options.dialect.first_line(lines.text)[1])

    def _block(
        self, lines: Stretch, spans: Spans, buffers: Buffers, streamed: bool = False, quoted: bool | None = None
    ) -> Block:
        plan, dialect = self.plan, self.options.dialect
        quote = None if dialect.quote is None else ord(dialect.quote)
        quoted = lines.has(quote) if quoted is None else quoted
        if lines.error is not None:
            self.on_error.bad(lines.error)
        if plan.layout is not None and not quoted:
            parsed = csv_kernel.parse(lines.text, plan.layout, buffers)
            if parsed is not None and not self._may_round(parsed, lines.text):
                return self._numbers(parsed, origin_of(spans, None, self._quoting, streamed))
        if plan.layout is not None:
            fell_back(
                "CSV",
                "a block with quotes, or cells that are not plain numbers or may be rounded, went through PyArrow",
            )
        rows = Parser(dialect, plan.names, plan.types, plan.floats).parse(lines.text, quoted)
        if rows.bad:
            self._report(lines, spans, rows, streamed)
        origin = origin_of(spans, rows.numbers, self._quoting, streamed)
        return plan.shape.block(rows.table, origin, self.on_error, buffers)

    def _report(self, lines: Stretch, spans: Spans, rows: Rows, streamed: bool) -> None:
        starts = row_offsets(lines.text, self._quoting)
        what = "decompressed byte" if streamed else "byte"
        for row, reason in rows.bad:
            # PyArrow takes a lone carriage return for a line's end: it may count more rows than there are lines.
            place = int(starts[min(row, len(starts) - 1)]) if len(starts) else 0
            path, byte = spans.place(place)
            # The line costs a look at all the text before it: for the one error that ends a run, not for thousands.
            line = f" (line {line_number(path, byte)})" if self.on_error.mode == "raise" and not streamed else ""
            self.on_error.bad(BadData(f"{path}, {what} {byte}{line}", reason))

    def _numbers(self, parsed: csv_kernel.Parsed, origin: Origin) -> Block:
        """The kernel's arrays under the names of the block's columns."""
        layout, columns = self.plan.layout, dict[str, Column]()
        assert layout is not None
        for spec in self.plan.specs:
            at = self.plan.names.index(spec.sources[0])
            columns[spec.name] = parsed.column(layout.kinds[at], layout.slots[at])
        return Block(columns, self.plan.schema.tree, origin)

    def _may_round(self, parsed: csv_kernel.Parsed, text: bytes | memoryview) -> bool:
        """Whether whole numbers among floats, or beside missing ones, may have lost digits: PyArrow finds out which."""
        if not is_large(parsed.floats):
            return False
        plan, layout = self.plan, self.plan.layout
        assert layout is not None
        exact = {*(plan.shape.nullable or ()), *plan.floats}
        columns = zip(plan.names, layout.kinds, layout.slots, strict=True)
        slots = [slot for name, kind, slot in columns if kind == csv_kernel.FLOAT and name in exact]
        return any(is_large(parsed.floats[slot]) for slot in slots) and may_hold_long_integer(text)

    def _check_header(self, file: int) -> None:
        """Every file must have the columns of the first, in its order: ranges behind the header rely on it."""
        if not self.options.dialect.header or self.options.names is not None or file in self._same_header:
            return
        names = csv_infer.header_names(
            self.paths[file], read_head(self.paths[file], self.options), self.options.dialect
        )
        if names != self.plan.names:
            odd = next((n for n in [*names, *self.plan.names] if n not in names or n not in self.plan.names), None)
            what = f"column {odd!r} is in only one of them" if odd is not None else "their columns are in another order"
            raise SchemaChanged(
                f"{self.paths[file]} does not have the columns of {self.paths[0]}: {what} "
                f"({', '.join(names[:20])} against {', '.join(self.plan.names[:20])})."
            )
        self._same_header.add(file)


def origin_of(spans: Spans, numbers: np.ndarray | None, quoting: Quoting, streamed: bool) -> Origin:
    """Tells where a row is. The text is read once more for that, so that blocks need not keep it."""

    def origin(row: int) -> str:
        row = row if numbers is None else int(numbers[row])
        if streamed:
            return f"{spans.paths[0]}, row {row} after decompressed byte {int(spans.offsets[0])}"
        starts = row_offsets(spans.again(), quoting)
        path, byte = spans.place(int(starts[row]) if row < len(starts) else 0)
        return f"{path}, byte {byte}"

    return origin


def read_head(path: str, options: CsvOptions) -> bytes:
    """The first bytes of a file, enough for its header."""
    kind = packing(path, options.dialect)
    if kind is not None:
        return csv_infer.read_some(path, kind, HEADER_NBYTES, options.dialect).removeprefix(BOM)
    nbytes = HEADER_NBYTES
    while True:
        head = storage.read_range(path, 0, nbytes)
        if b"\n" in head or len(head) < nbytes or nbytes > options.max_line:
            return head.removeprefix(BOM)
        nbytes *= 4

"""Whole CSV lines to Arrow columns.

Covers: the dialect, parsing with PyArrow, finding the rows and cells that do not fit, byte offsets of rows.
Does not cover: cutting files into lines (split.py), the compiled path for numbers (numbers.py).
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from penstock.core.arrow_numbers import no_rows, numbers
from penstock.core.errors import InvalidInput
from penstock.sources.csv.hexadecimal import is_hexadecimal, may_hold_hexadecimal
from penstock.sources.csv.rounding import is_large, rounded_cells
from penstock.sources.csv.short_rows import padded, row_spans
from penstock.sources.csv.split import NEWLINE, OUTSIDE, Quoting

NULL_VALUES = tuple(pacsv.ConvertOptions().null_values)
TRUE_VALUES = ("true", "True", "TRUE", "1")
FALSE_VALUES = ("false", "False", "FALSE", "0")


@dataclass(frozen=True)
class Dialect:
    """How a file is written."""

    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    null_values: tuple[str, ...] = NULL_VALUES
    timestamp_formats: tuple[str, ...] = ()
    encoding: str = "utf-8"
    comment: str | None = None
    pad: bool = False
    """Whether the values that a row lacks at its end are missing ones."""

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote", "comment"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or len(given.encode()) != 1):
                raise InvalidInput(f"{name}= must be one plain character, not {given!r}.")
        if self.delimiter in ("\n", "\r", self.quote):
            raise InvalidInput(f"delimiter={self.delimiter!r} cannot separate the values of a line.")

    @property
    def quoting(self) -> Quoting:
        """What the splitter has to know."""
        return Quoting(ord(self.delimiter), None if self.quote is None else ord(self.quote))

    def first_line(self, text: bytes | memoryview) -> tuple[list[str], int]:
        """The cells of the first line that is not empty, and where the next line starts."""
        data = np.frombuffer(text, np.uint8)
        ends = self.quoting.newlines(data, OUTSIDE, NEWLINE)
        start = 0
        for end in [*ends.tolist(), len(data)]:
            line = bytes(data[start:end]).rstrip(b"\r")
            start = end + 1
            if line:
                return self.cells(line.decode("utf-8", "replace")), min(start, len(data))
        return [], len(data)

    def cells(self, line: str) -> list[str]:
        """The values of one line."""
        csv.field_size_limit(2**31 - 1)
        if self.quote is None:
            return line.split(self.delimiter)
        return next(csv.reader([line], delimiter=self.delimiter, quotechar=self.quote), [])


@dataclass(frozen=True)
class Rows:
    """Parsed rows; `numbers` maps them to rows of the text where some were left out. `bad` pairs row and reason."""

    table: pa.Table
    numbers: np.ndarray | None
    bad: tuple[tuple[int, str], ...]


UTF8, ONE_TO_ONE = "utf8", "latin1"


def encoding_of(text: bytes | memoryview) -> str:
    """How PyArrow shall read a text. It shows lines that do not fit to a handler, and fails if they are not UTF-8."""
    try:
        pa.Array.from_buffers(
            pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, len(text)], np.int64)), pa.py_buffer(text)]
        ).cast(pa.large_string())
    except pa.ArrowInvalid:
        return ONE_TO_ONE
    return UTF8


def _as_stored(table: pa.Table) -> pa.Table:
    """Cells that were read one character a byte, as the bytes that they were."""
    columns = [
        pa.array([None if v is None else v.decode().encode(ONE_TO_ONE) for v in column.to_pylist()], pa.binary())
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


class Parser:
    """Parses lines of one layout: all column names, and the types of the wanted ones.

    In columns of `floats` whole numbers keep their digits, or their rows do not fit.
    """

    def __init__(
        self,
        dialect: Dialect,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        floats: Collection[str] = frozenset(),
    ) -> None:
        self.dialect, self.names, self.types, self.floats = dialect, list(names), dict(types), floats
        self._whole = any(map(pt.is_integer, self.types.values()))

    def parse(self, text: bytes | memoryview, quoted: bool) -> Rows:
        """All rows of the text that fit, and what is wrong with the others; `quoted` if quotes occur in it."""
        if not _has_text(text):
            return Rows(no_rows(pa.schema(list(self.types.items()))), None, ())
        bad: list[tuple[int, str]] = []
        try:
            if encoding_of(text) != UTF8:
                raise pa.ArrowInvalid("some of it is not UTF-8")
            if self._whole and may_hold_hexadecimal(text):
                raise pa.ArrowInvalid("PyArrow would take text for integers")
            table = self._read(text, self.types, quoted, bad)
        except pa.ArrowInvalid:
            # Some cell does not fit. Reading the cells as bytes and casting them column by column finds all of these.
            bad.clear()
            cast = self._cast(self._read(text, {name: pa.binary() for name in self.types}, quoted, bad), bad)
            return self._without_rounded(cast, text, quoted)
        except pa.ArrowNotImplementedError as error:  # a type by the user's word: no other one is guessed
            raise InvalidInput(f"{error}. Give another type with dtypes= or schema=.") from None
        return self._without_rounded(Rows(table, _numbers(table.num_rows, bad), tuple(bad)), text, quoted)

    def _without_rounded(self, rows: Rows, text: bytes | memoryview, quoted: bool) -> Rows:
        """The rows in which no whole number lost digits."""
        large = [n for n in self.floats if is_large(numbers(rows.table.column(n).combine_chunks()))]
        if not large:
            return rows
        bad: list[tuple[int, str]] = []
        cells = self._read(text, dict.fromkeys(large, pa.binary()), quoted, bad)
        places = np.arange(rows.table.num_rows) if rows.numbers is None else rows.numbers
        among = _numbers(cells.num_rows, bad)
        if rows.numbers is not None:  # without the rows whose other cells do not fit
            cells = cells.take(pa.array(places if among is None else np.searchsorted(among, places)))
        found: dict[int, str] = {}
        for name in large:
            found = {**rounded_cells(name, rows.table.column(name), cells.column(name)), **found}
        if not found:
            return rows
        keep = np.ones(len(places), np.bool_)
        keep[[*found]] = False
        told = [(int(places[row]), why) for row, why in found.items()]
        return Rows(rows.table.filter(pa.array(keep)), places[keep], tuple(sorted([*rows.bad, *told])))

    def _read(self, text: Any, types: Mapping[str, pa.DataType], quoted: bool, bad: list[tuple[int, str]]) -> pa.Table:
        """The rows of a text, short ones made whole where that is asked for; others that do not fit go to `bad`."""
        found, lacking = self._fitting(text, types, quoted, bad)
        if not lacking or not self.dialect.pad:
            return found
        bad.clear()
        return self._fitting(padded(text, self.dialect.quoting, lacking), types, quoted, bad)[0]

    def _fitting(
        self, text: Any, types: Mapping[str, pa.DataType], quoted: bool, bad: list[tuple[int, str]]
    ) -> tuple[pa.Table, dict[int, int]]:
        dialect, encoding, lacking = self.dialect, encoding_of(text), dict[int, int]()

        def misfit(row: Any) -> str:
            told = f"{row.actual_columns} values where there are {row.expected_columns} columns"
            if row.actual_columns < row.expected_columns:
                lacking[row.number - 1] = row.expected_columns - row.actual_columns
                told += ". short_rows='pad' takes the others for missing"
            bad.append((row.number - 1, told))
            return "skip"

        if encoding != UTF8:  # cells go through one character a byte and back, whatever they are
            types = {name: pa.binary() for name in types}
        found = pacsv.read_csv(
            pa.py_buffer(text),
            read_options=pacsv.ReadOptions(
                use_threads=False, column_names=self.names, block_size=min(len(text) + 1, 2**31 - 1), encoding=encoding
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote if dialect.quote is not None else False,
                newlines_in_values=quoted,
                invalid_row_handler=misfit,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(dialect.null_values),
                true_values=list(TRUE_VALUES),
                false_values=list(FALSE_VALUES),
                timestamp_parsers=[*dialect.timestamp_formats, pacsv.ISO8601] if dialect.timestamp_formats else None,
                strings_can_be_null=True,
            ),
        ).combine_chunks()
        return found if encoding == UTF8 else _as_stored(found), lacking

    def _cast(self, table: pa.Table, bad: list[tuple[int, str]]) -> Rows:
        numbers = _numbers(table.num_rows, bad)
        if numbers is None:
            numbers = np.arange(table.num_rows)
        arrays, keep = [], np.ones(table.num_rows, bool)
        for name, kind in self.types.items():
            cells = table.column(name).combine_chunks()
            array, wrong = cast_cells(cells, kind, self.dialect)
            for row in wrong:
                keep[row] = False
                bad.append((int(numbers[row]), _misfit(name, kind, cells[row].as_py())))
            arrays.append(array)
        clean = pa.table(arrays, schema=pa.schema(list(self.types.items()))).filter(pa.array(keep))
        return Rows(clean, numbers[keep], tuple(sorted(bad)))


def _misfit(name: str, kind: pa.DataType, cell: bytes) -> str:
    shown = cell[:80].decode("utf-8", "replace")
    better = "string" if not pt.is_integer(kind) else "float64"
    if pt.is_integer(kind) and cell.strip().lstrip(b"+-").isdigit():  # whole, but too long
        better = "uint64" if kind != pa.uint64() and 0 <= int(cell) < 2**64 else "string"
    if cell.strip().lstrip(b"+-")[:2].lower() == b"0x":
        better = "string"
    if pt.is_string(kind):
        looks = "cp1252" if any(0x80 <= byte < 0xA0 for byte in cell) else "latin-1"
        return f"column {name!r} holds {shown!r}, which is not UTF-8. It looks like {looks}: give encoding={looks!r}"
    return f"column {name!r} is {kind} but holds {shown!r}. If that is right, give dtypes={{{name!r}: {better!r}}}"


def cast_cells(cells: pa.Array, kind: pa.DataType, dialect: Dialect) -> tuple[pa.Array, list[int]]:
    """Cells (bytes) as a type, missing where a word says so, and the rows that do not fit (missing as well)."""
    nulls = pa.array([w.encode() for w in dialect.null_values], pa.binary())
    cells = pc.if_else(pc.is_in(cells, value_set=nulls), pa.scalar(None, pa.binary()), cells)
    wrong: list[int] = []
    parts = _halved(cells, 0, kind, dialect, wrong)
    return (pa.concat_arrays(parts) if parts else pa.array([], kind)), wrong


def _halved(cells: pa.Array, start: int, kind: pa.DataType, dialect: Dialect, wrong: list[int]) -> list[pa.Array]:
    """Cast cells; where that fails, cast their halves, down to the single cells at fault."""
    try:
        return [_cast_text(cells, kind, dialect)]
    except pa.ArrowInvalid:
        if len(cells) == 1:
            wrong.append(start)
            return [pa.nulls(1, kind)]
    middle = len(cells) // 2
    left = _halved(cells[:middle], start, kind, dialect, wrong)
    return left + _halved(cells[middle:], start + middle, kind, dialect, wrong)


def _cast_text(cells: pa.Array, kind: pa.DataType, dialect: Dialect) -> pa.Array:
    if pt.is_binary(kind):
        return cells
    text = pc.cast(cells, pa.string())
    if pt.is_string(kind) or pt.is_large_string(kind):
        return pc.cast(text, kind)
    text = pc.ascii_trim_whitespace(text)
    if pt.is_boolean(kind):
        true, false = (pc.is_in(text, value_set=pa.array(words)) for words in (TRUE_VALUES, FALSE_VALUES))
        if not pc.all(pc.or_(pc.or_(true, false), pc.is_null(text))).as_py() and len(text):
            raise pa.ArrowInvalid("not a boolean")
        return pc.if_else(pc.is_null(text), pa.scalar(None, pa.bool_()), true)
    if pt.is_timestamp(kind):
        for form in dialect.timestamp_formats:
            try:
                return pc.cast(pc.strptime(text, format=form, unit=kind.unit), kind)
            except pa.ArrowInvalid:
                continue
    if pt.is_time(kind):
        return _times(text, kind)
    if pt.is_integer(kind) and is_hexadecimal(text):
        raise pa.ArrowInvalid("hexadecimal numbers are text")
    if pt.is_floating(kind):
        text = pc.replace_substring_regex(text, r"^\+", "")
    return pc.cast(text, kind)


def _times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times of day, which Arrow's CSV parser reads but its cast does not: as moments of the first day."""
    if not pc.all(pc.match_substring_regex(text, r"^\d\d:\d\d(:\d\d(\.\d+)?)?$"), min_count=0).as_py():
        raise pa.ArrowInvalid("not a time of day")
    moments = pc.cast(pc.binary_join_element_wise("1970-01-01", text, " "), pa.timestamp(kind.unit))
    since = pc.cast(moments, pa.int64())
    return pc.cast(pc.cast(since, pa.int32()) if pt.is_time32(kind) else since, kind)


def _numbers(kept: int, bad: Sequence[tuple[int, str]]) -> np.ndarray | None:
    """Row numbers in the text of the rows that were kept; None if that is all of them."""
    return np.delete(np.arange(kept + len(bad)), [row for row, _ in bad]) if bad else None


def _has_text(text: bytes | memoryview) -> bool:
    return len(text) > 0 and bool(bytes(text[:1000]).strip(b"\r\n") or bytes(text).strip(b"\r\n"))


def row_offsets(text: bytes | memoryview, quoting: Quoting) -> np.ndarray:
    """Where each row (a line that is not empty) starts in the text."""
    return row_spans(text, quoting)[0]

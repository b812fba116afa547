"""Column names and types of CSV files, from samples of their start, middle and end.

Covers: the header, sampling, agreeing on a type over samples, and the types that users name.
Does not cover: parsing rows for training (arrow.py).
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from penstock.core.errors import BadData, InvalidInput
from penstock.sources.csv.arrow import FALSE_VALUES, TRUE_VALUES, UTF8, Dialect, encoding_of
from penstock.sources.csv.hexadecimal import is_hexadecimal, may_hold_hexadecimal
from penstock.sources.csv.long_integers import LONG, exact_type, too_long
from penstock.sources.csv.short_rows import padded
from penstock.sources.csv.split import BOM, INSIDE, NEWLINE, OUTSIDE
from penstock.sources.csv.text_stream import open_text, packing
from penstock.sources.storage import files as storage

SAMPLE_NBYTES = 256_000
"""Text per sample: three places in up to three files make 2.3 MB."""

_WORDS = {"str": pa.string(), "text": pa.string(), "string": pa.string(), "bytes": pa.binary(), "date": pa.date32()}


def arrow_type(name: str, given: Any) -> pa.DataType:
    """The Arrow type that a user's word, dtype or type means."""
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, str) and given in _WORDS:
        return _WORDS[given]
    if isinstance(given, str) and given == "datetime":
        return pa.timestamp("us")
    try:
        dtype = np.dtype(given)
        return pa.string() if dtype.kind in "OU" else pa.from_numpy_dtype(dtype)
    except (TypeError, ValueError, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(
            f"dtypes={{{name!r}: {given!r}}} is not a type. Use a NumPy dtype such as 'float32', or 'string', 'date', "
            f"'datetime', 'category'."
        ) from error


@dataclass
class Findings:
    """What the samples say."""

    names: list[str]
    types: dict[str, pa.DataType] = field(default_factory=dict)
    with_nulls: set[str] = field(default_factory=set)
    values: dict[str, list[Any]] = field(default_factory=dict)
    quotes: bool = False
    text_nbytes: int = 0
    rows: int = 0
    row_nbytes: float = 0.0
    last: pa.Table | None = None
    negative: set[str] = field(default_factory=set)
    """Columns of integers of which some are below zero."""


def infer(
    paths: Sequence[str],
    dialect: Dialect,
    names: Sequence[str] | None,
    fixed: Mapping[str, Any],
    categories: Collection[str] | None = (),
) -> Findings:
    """Look at the files. `names` replaces the header's names; `fixed` are the types that users gave.

    The values of the columns in `categories` are collected; None means those of all text columns.
    """
    found: Findings | None = None
    for number in sorted({0, len(paths) // 2, len(paths) - 1}):
        for text, start in samples(paths[number], dialect):
            if found is None:
                found = Findings(list(names) if names is not None else header_names(paths[0], text, dialect))
            if start and dialect.header:
                text = text[dialect.first_line(text)[1] :]
            if text.strip():
                try:
                    _look(text, start, dialect, fixed, found)
                except ValueError as error:
                    raise BadData(paths[number], str(error)) from error
                _collect(found, categories)
    if found is None:
        raise BadData(paths[0], "the file is empty: there is no header and no row")
    for name in found.names:
        # A column without any value in the samples may hold anything: text is always right.
        kind = found.types.get(name, pa.null())
        seen = pa.string() if pt.is_null(kind) else kind
        found.types[name] = arrow_type(name, fixed[name]) if name in fixed else seen
    return found


def header_names(path: str, text: bytes, dialect: Dialect) -> list[str]:
    """Names from the first line, or c0, c1, ... A name that occurs twice gets a number."""
    try:
        cells, _ = dialect.first_line(text)
    except csv.Error as error:
        told = "lines end in \\r alone, or it is no CSV file at all" if "new-line" in str(error) else str(error)
        raise BadData(path, f"its first line cannot be read: {told}") from error
    if not cells:
        raise BadData(path, "the file is empty: there is no header and no row")
    _refuse_odd_start(path, text, dialect)
    if not dialect.header:
        return [f"c{i}" for i in range(len(cells))]
    names: dict[str, None] = {}
    for cell in cells:
        name, count = cell, 0
        while name in names:
            count += 1
            name = f"{cell}.{count}"
        names[name] = None
    return list(names)


def _refuse_odd_start(path: str, text: bytes, dialect: Dialect) -> None:
    """Raise for a first line that cannot be one, with what it looks like."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or text[:1000].count(b"\0") * 3 > len(text[:1000]):
        raise BadData(path, "it looks like UTF-16, not UTF-8. Give encoding='utf-16'")
    first = text[: dialect.first_line(text)[1]]
    if dialect.header and encoding_of(first) != UTF8:  # names would be made up
        raise BadData(path, "its first line is not UTF-8. Give encoding=, such as 'latin-1' or 'cp1252'")
    line = np.frombuffer(first, np.uint8)
    if len(line) and dialect.quoting.toggles(line, OUTSIDE, NEWLINE)[1] == INSIDE:
        raise BadData(path, "a quote in its first line is never closed. Give quote=None if quotes are plain text")


def samples(path: str, dialect: Dialect) -> Iterator[tuple[bytes, bool]]:
    """Pieces of text from start, middle and end, and whether the piece begins the file."""
    kind = packing(path, dialect)
    if kind is not None:
        head = read_some(path, kind, SAMPLE_NBYTES, dialect)
        yield _whole_lines(head.removeprefix(BOM), dialect, len(head) < SAMPLE_NBYTES), True
        return
    total = storage.file_size(path)
    if total <= 3 * SAMPLE_NBYTES:
        yield storage.read_range(path, 0, total).removeprefix(BOM), True
        return
    yield _whole_lines(storage.read_range(path, 0, SAMPLE_NBYTES).removeprefix(BOM), dialect, False), True
    yield storage.read_range(path, total // 2, SAMPLE_NBYTES), False
    yield storage.read_range(path, total - SAMPLE_NBYTES, SAMPLE_NBYTES), False


def read_some(path: str, kind: Any, nbytes: int, dialect: Dialect) -> bytes:
    """The first bytes of a packed file, its first line whole. One that breaks off gives what it has."""
    head = b""
    with open_text(path, kind, dialect.quoting) as stream:
        try:
            while (len(head) < nbytes or b"\n" not in head) and (piece := stream.read(16_384)):
                head += piece
        except (OSError, UnicodeError) as error:
            if not head:
                raise BadData(path, f"is not a {kind} file, or damaged at its start ({error})") from error
    return head


def _whole_lines(text: bytes, dialect: Dialect, ended: bool) -> bytes:
    ends = dialect.quoting.newlines(np.frombuffer(text, np.uint8), OUTSIDE, NEWLINE)
    return text if ended or not len(ends) else text[: int(ends[-1]) + 1]


def _look(text: bytes, start: bool, dialect: Dialect, fixed: Mapping[str, Any], found: Findings) -> None:
    """Add one sample to the findings."""
    quoted = dialect.quote is not None and dialect.quote.encode() in text
    found.quotes |= quoted
    tries = [text] if start else [_cut(text, dialect, OUTSIDE), *([_cut(text, dialect, INSIDE)] if quoted else [])]
    read = [_read(piece, dialect, found.names, fixed) for piece in tries if piece.strip()]
    if not read:
        return
    # In the middle of a file one cannot know whether a quote is open: the reading with fewer misfits is right.
    table, bad, nbytes = min(read, key=lambda r: r[1])
    if bad > table.num_rows // 10 and not start:
        return
    found.text_nbytes += nbytes
    found.rows += table.num_rows
    found.row_nbytes += table.nbytes
    for name in found.names:
        column = table.column(name)
        if column.null_count:
            found.with_nulls.add(name)
        found.types[name] = agree(found.types.get(name, pa.null()), column.type)
        if pt.is_signed_integer(column.type) and (pc.min(column).as_py() or 0) < 0:
            found.negative.add(name)
        if pt.is_uint64(found.types[name]) and name in found.negative:
            raise ValueError(too_long(name, 2**63))
    found.last = table


def _collect(found: Findings, categories: Collection[str] | None) -> None:
    """Add the values of category columns in the last sample, sorted."""
    table, found.last = found.last, None
    if table is None:
        return
    for name in found.names if categories is None else categories:
        column = table.column(name) if name in table.column_names else None
        if column is not None and (categories is not None or pt.is_string(column.type)):
            seen = set(found.values.get(name, ())) | set(pc.unique(column).drop_null().to_pylist())
            found.values[name] = sorted(seen, key=lambda value: (str(type(value)), value))


def _cut(text: bytes, dialect: Dialect, state: int) -> bytes:
    ends = dialect.quoting.newlines(np.frombuffer(text, np.uint8), state, 0)
    return text[int(ends[0]) + 1 : int(ends[-1]) + 1] if len(ends) > 1 else b""


def _read(text: bytes, dialect: Dialect, names: Sequence[str], fixed: Mapping[str, Any]) -> tuple[pa.Table, int, int]:
    """A sample with the types PyArrow sees in it, and the number of lines that do not have all columns.

    Whole numbers too long for int64 are not floats: ValueError if no type can hold a column of them. Hexadecimal
    numbers are text.
    """
    bad: list[int] = []
    lacking: dict[int, int] = {}

    def misfit(row: Any) -> str:
        bad.append(row.number)
        if dialect.pad and row.actual_columns < row.expected_columns:
            lacking[row.number - 1] = row.expected_columns - row.actual_columns
        return "skip"

    types = {name: pa.binary() for name in fixed if name in names}
    table = _parsed(text, dialect, names, types, misfit)
    if lacking:
        return _read(padded(text, dialect.quoting, lacking), replace(dialect, pad=False), names, fixed)
    whole = [n for n in names if pt.is_integer(table.schema.field(n).type)] if may_hold_hexadecimal(text) else []
    if whole:
        cells = _parsed(text, dialect, names, {**types, **dict.fromkeys(whole, pa.string())}, lambda row: "skip")
        types |= {name: pa.string() for name in whole if is_hexadecimal(cells.column(name))}
        table = _parsed(text, dialect, names, types, lambda row: "skip")
    floats = [name for name in names if table.schema.field(name).type == pa.float64()] if LONG.search(text) else []
    if floats:
        cells = _parsed(text, dialect, names, {**types, **dict.fromkeys(floats, pa.string())}, lambda row: "skip")
        kinds = {name: exact_type(name, cells.column(name)) for name in floats}
        exact = {name: kind for name, kind in kinds.items() if pt.is_integer(kind)}
        if exact:
            table = _parsed(text, dialect, names, {**types, **exact}, lambda row: "skip")
    return table, len(bad), len(text)


def _parsed(text: bytes, dialect: Dialect, names: Sequence[str], types: Mapping[str, pa.DataType], misfit: Any) -> Any:
    return pacsv.read_csv(
        pa.py_buffer(text),
        read_options=pacsv.ReadOptions(
            use_threads=False, column_names=list(names), block_size=len(text) + 1, encoding=encoding_of(text)
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote if dialect.quote is not None else False,
            newlines_in_values=dialect.quote is not None,
            invalid_row_handler=misfit,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            null_values=list(dialect.null_values),
            true_values=list(TRUE_VALUES),
            false_values=list(FALSE_VALUES),
            timestamp_parsers=[*dialect.timestamp_formats, pacsv.ISO8601] if dialect.timestamp_formats else None,
            strings_can_be_null=True,
        ),
    )


def agree(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type that holds the values of both, text if nothing narrower does."""
    if pt.is_binary(right):
        right = pa.string()  # some of it is not UTF-8: rows that are not are reported when they are read
    if pt.is_timestamp(right) and right.unit == "s":
        right = pa.timestamp("us", right.tz)  # leaves room for fractions of seconds in rows not yet seen
    if pt.is_null(left) or left == right:
        return right
    if pt.is_null(right):
        return left
    kinds = {str(left), str(right)}
    if kinds in ({"int64", "double"}, {"uint64", "double"}):
        return pa.float64()
    if kinds == {"int64", "uint64"}:
        return pa.uint64()
    if all(pt.is_timestamp(kind) or pt.is_date(kind) for kind in (left, right)):
        zones = {kind.tz for kind in (left, right) if pt.is_timestamp(kind)}
        units = {kind.unit for kind in (left, right) if pt.is_timestamp(kind)}
        return pa.timestamp("ns" if "ns" in units else "us", zones.pop()) if len(zones) == 1 else pa.string()
    return pa.string()

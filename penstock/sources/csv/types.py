"""Column names and types of CSV files, from samples of their start, middle and end.

Covers: the header, sampling, agreeing on a type over samples, and the types that users name.
Does not cover: parsing rows for training (csv_parse.py).
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from penstock.core.errors import BadData, InvalidInput
from penstock.sources import storage
from penstock.sources.csv_parse import FALSE_VALUES, TRUE_VALUES, Dialect, encoding_of
from penstock.sources.csv_split import BOM, INSIDE, NEWLINE, OUTSIDE

SAMPLE_NBYTES = 256_000
"""Text per sample: three places in up to three files make 2.3 MB."""

_COMPRESSION = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4"}
_WORDS = {"str": pa.string(), "text": pa.string(), "string": pa.string(), "bytes": pa.binary(), "date": pa.date32()}


def compression_of(path: str) -> str | None:
    """How a file is compressed, from its name."""
    return next((kind for suffix, kind in _COMPRESSION.items() if path.lower().endswith(suffix)), None)


def open_decompressed(path: str, kind: str) -> BinaryIO:
    """A compressed file as a stream of text, decompressed as it is read."""
    raw = pa.PythonFile(storage.open_file(path)) if storage.is_remote(path) else pa.OSFile(storage.local_path(path))
    return cast(BinaryIO, pa.CompressedInputStream(raw, kind))


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
    except (TypeError, pa.ArrowNotImplementedError) as error:
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
                _look(text, start, dialect, fixed, found)
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
    if not dialect.header:
        return [f"c{i}" for i in range(len(cells))]
    names: list[str] = []
    for cell in cells:
        name, count = cell, 0
        while name in names:
            count += 1
            name = f"{cell}.{count}"
        names.append(name)
    return names


def samples(path: str, dialect: Dialect) -> Iterator[tuple[bytes, bool]]:
    """Pieces of text from start, middle and end, and whether the piece begins the file."""
    kind = compression_of(path)
    if kind is not None:
        head = read_some(path, kind, SAMPLE_NBYTES)
        yield _whole_lines(head.removeprefix(BOM), dialect, len(head) < SAMPLE_NBYTES), True
        return
    total = storage.file_size(path)
    if total <= 3 * SAMPLE_NBYTES:
        yield storage.read_range(path, 0, total).removeprefix(BOM), True
        return
    yield _whole_lines(storage.read_range(path, 0, SAMPLE_NBYTES).removeprefix(BOM), dialect, False), True
    yield storage.read_range(path, total // 2, SAMPLE_NBYTES), False
    yield storage.read_range(path, total - SAMPLE_NBYTES, SAMPLE_NBYTES), False


def read_some(path: str, kind: str, nbytes: int) -> bytes:
    """The first bytes of a compressed file. One that breaks off gives what it has: reading it will tell."""
    head = b""
    with open_decompressed(path, kind) as stream:
        try:
            while len(head) < nbytes and (piece := stream.read(min(16_384, nbytes - len(head)))):
                head += piece
        except OSError as error:
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
    """A sample with the types PyArrow sees in it, and the number of lines that do not have all columns."""
    bad: list[int] = []

    def misfit(row: Any) -> str:
        bad.append(row.number)
        return "skip"

    table = pacsv.read_csv(
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
            column_types={name: pa.binary() for name in fixed if name in names},
            null_values=list(dialect.null_values),
            true_values=list(TRUE_VALUES),
            false_values=list(FALSE_VALUES),
            timestamp_parsers=[*dialect.timestamp_formats, pacsv.ISO8601] if dialect.timestamp_formats else None,
            strings_can_be_null=True,
        ),
    )
    return table, len(bad), len(text)


def agree(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type that holds the values of both, text if nothing narrower does."""
    if pt.is_binary(right):
        right = pa.string()  # some of it is not UTF-8: rows that are not will be told when they are read
    if pt.is_timestamp(right) and right.unit == "s":
        right = pa.timestamp("us", right.tz)  # leaves room for fractions of seconds in rows not yet seen
    if pt.is_null(left) or left == right:
        return right
    if pt.is_null(right):
        return left
    kinds = {str(left), str(right)}
    if kinds == {"int64", "double"}:
        return pa.float64()
    if all(pt.is_timestamp(kind) or pt.is_date(kind) for kind in (left, right)):
        zones = {kind.tz for kind in (left, right) if pt.is_timestamp(kind)}
        units = {kind.unit for kind in (left, right) if pt.is_timestamp(kind)}
        return pa.timestamp("ns" if "ns" in units else "us", zones.pop()) if len(zones) == 1 else pa.string()
    return pa.string()

"""`read_csv`.

Covers: the arguments users see.
Does not cover: reading (sources/csv/source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from penstock.core.errors import DataError, InvalidInput
from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.csv.arrow import NULL_VALUES, Dialect
from penstock.sources.csv.plan import CsvOptions
from penstock.sources.csv.sniff import begins_as_comment, shown, sniff_header, sniffed
from penstock.sources.csv.source import CsvSource, read_head
from penstock.sources.csv.text_stream import known_encoding
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import TableShape

COMMENTED = "comment='#' if it is neither, or "
SUFFIXES = tuple(f".{kind}{packed}" for kind in ("csv", "tsv", "txt") for packed in ("", ".gz", ".bz2", ".zst"))


def read_csv(
    paths: storage.Paths,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    matrix: bool | None = None,
    dtype: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | pa.Schema | None = None,
    categories: Mapping[str, Any] | Literal["infer"] | None = None,
    fill: Mapping[str, Any] | float | str | None = None,
    delimiter: str | None = None,
    quote: str | None = "auto",
    header: bool | None = None,
    column_names: Sequence[str] | None = None,
    null_values: Sequence[str] | None = None,
    timestamp_formats: Sequence[str] = (),
    encoding: str = "utf-8",
    comment: str | None = None,
    short_rows: Literal["error", "pad"] = "error",
    newlines_in_values: bool | None = None,
    max_line: Size = "64MB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read CSV files (plain, gzip, bz2, zstd) of any size, split by byte ranges.

    Samples are dicts of columns; with `label=` or `features=` they are `(x, y)` or x, where x is one float32 row (or
    `dtype=`) if all features are numbers. Types come from samples of the files; `dtypes={"column": "float64"}` changes
    some and `schema=` names all. `categories={"column": ["a", "b"]}` (or "infer") gives integer codes. `fill=` replaces
    missing values. Delimiter (, ; | or a tab), quote (" or ') and whether there is a header are found in the first
    lines unless given; without one columns are c0, c1, ... A row with too few values is damaged, or `short_rows="pad"`.
    Files in another `encoding=`, or with lines that begin with `comment=`, are read as streams. A promise that no value
    holds a newline, `newlines_in_values=False`, saves counting quotes first; with True they are counted even where the
    samples show none, which only values of 64 KB and more with newlines need.

    >>> x, y = next(iter(read_csv("train.csv", label="label").shuffle(seed=1).batch(64)))
    """
    files, given = storage.expand(paths, suffixes=SUFFIXES), _given(schema)
    dialect = Dialect(
        delimiter="," if delimiter is None else delimiter,
        quote='"' if quote == "auto" else quote,
        header=header is not False,
        null_values=tuple(null_values) if null_values is not None else NULL_VALUES,
        timestamp_formats=tuple(timestamp_formats),
        encoding=known_encoding(encoding),
        comment=comment,
        pad=_padded(short_rows),
    )
    dialect = _as_written(files[0], dialect, delimiter=delimiter is None, quote=quote == "auto", header=header is None)
    shape = TableShape(features=features, label=label, matrix=matrix, dtype=dtype, columns=columns, fill=fill)
    options = CsvOptions(
        dialect=dialect,
        names=_names(column_names, given, dialect.header),
        dtypes={**given, **(dtypes or {})},
        categories=categories,
        newlines_in_values=newlines_in_values,
        max_line=parse_size(max_line),
    )
    return Dataset.of(CsvSource(files, shape, options, OnError(on_error, max_errors)))


def _names(column_names: Sequence[str] | None, schema: Mapping[str, Any], header: bool) -> tuple[str, ...] | None:
    """The names that replace those of the header, or None."""
    if column_names is None:
        return None if header else tuple(schema) or None
    if header and len(set(column_names)) != len(column_names):
        raise InvalidInput("column_names= has a name twice.")
    return tuple(column_names)


def _given(schema: Mapping[str, Any] | pa.Schema | None) -> dict[str, Any]:
    return {f.name: f.type for f in schema} if isinstance(schema, pa.Schema) else dict(schema or {})


def _padded(short_rows: str) -> bool:
    if short_rows not in ("error", "pad"):
        raise InvalidInput(f"short_rows= must be 'error' or 'pad', not {short_rows!r}.")
    return short_rows == "pad"


def _as_written(path: str, dialect: Dialect, *, delimiter: bool, quote: bool, header: bool) -> Dialect:
    """What is asked for as the file has it, by its name and its first lines. One that cannot be read says so later."""
    if not (delimiter or quote or header):
        return dialect
    if delimiter and ".tsv" in path.lower().rpartition("/")[2]:
        dialect, delimiter = replace(dialect, delimiter="\t"), False
    try:
        head = read_head(path, CsvOptions(dialect=dialect))
    except DataError:
        return dialect
    dialect = sniffed(head, dialect, delimiter=delimiter, quote=quote)
    if not header:
        return dialect
    found = sniff_header(head, dialect)
    if found is None:
        raise InvalidInput(
            f"The first line of {path} may name the columns or be a row: {shown(head)}. "
            f"Give {COMMENTED if begins_as_comment(head) else ''}header=True or header=False."
        )
    return replace(dialect, header=found)

"""`read_csv`.

Covers: the arguments users see.
Does not cover: reading (sources/csv.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from penstock.core.errors import InvalidInput
from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources import storage
from penstock.sources.csv import CsvOptions, CsvSource
from penstock.sources.csv_parse import NULL_VALUES, Dialect
from penstock.sources.table import TableShape

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
    quote: str | None = '"',
    header: bool = True,
    column_names: Sequence[str] | None = None,
    null_values: Sequence[str] | None = None,
    timestamp_formats: Sequence[str] = (),
    newlines_in_values: bool | None = None,
    max_line: Size = "64MB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read CSV files (plain, gzip, bz2, zstd) of any size, split by byte ranges.

    Samples are dicts of columns; with `label=` or `features=` they are `(x, y)` or x, where x is one float32 row (or
    `dtype=`) if all features are numbers. Types come from samples of the files; `dtypes={"column": "float64"}` changes
    some and `schema=` names all. `categories={"column": ["a", "b"]}` (or "infer") gives integer codes.
    `fill=` replaces missing values. `newlines_in_values=False` promises that no quoted value holds a newline, which
    saves counting the quotes of a file before its ranges are read in any order.
    """
    files = storage.expand(paths, suffixes=SUFFIXES)
    if delimiter is None:
        delimiter = "\t" if ".tsv" in files[0].lower().rpartition("/")[2] else ","
    types = dict(dtypes or {})
    if schema is not None:
        given = {f.name: f.type for f in schema} if isinstance(schema, pa.Schema) else dict(schema)
        types = {**given, **types}
        column_names = column_names if column_names is not None else (None if header else list(given))
    if header and column_names is not None and len(set(column_names)) != len(column_names):
        raise InvalidInput("column_names= has a name twice.")
    shape = TableShape(features=features, label=label, matrix=matrix, dtype=dtype, columns=columns, fill=fill)
    options = CsvOptions(
        dialect=Dialect(
            delimiter=delimiter,
            quote=quote,
            header=header,
            null_values=tuple(null_values) if null_values is not None else NULL_VALUES,
            timestamp_formats=tuple(timestamp_formats),
        ),
        names=None if column_names is None else tuple(column_names),
        dtypes=types,
        categories=categories,
        newlines_in_values=newlines_in_values,
        max_line=parse_size(max_line),
    )
    return Dataset.of(CsvSource(files, shape, options, OnError(on_error, max_errors)))

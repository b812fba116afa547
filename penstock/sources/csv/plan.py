"""What samples of CSV files settle before anything is read: names, types, categories, ranges and pieces.

Covers: `CsvOptions` and the `CsvPlan` made of them.
Does not cover: reading (source.py), types of the sampled columns (types.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import InvalidInput, NotFound
from penstock.core.schema import Schema
from penstock.sources.csv import numbers as csv_kernel
from penstock.sources.csv import types as csv_infer
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.rounding import inferred_floats
from penstock.sources.csv.text_stream import packing
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import Spec, TableShape
from penstock.sources.text.scattered import piece_nbytes

RANGE_NBYTES = 4_000_000
"""Text in a range. As fast as twice as much with 70 MB less in use: text goes to malloc's memory, which stays large."""

_NUMBER = re.compile(r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*")


@dataclass(frozen=True)
class CsvOptions:
    """How to read; see `read_csv` for what each means."""

    dialect: Dialect = field(default_factory=Dialect)
    names: tuple[str, ...] | None = None
    dtypes: Mapping[str, Any] = field(default_factory=dict)
    categories: Mapping[str, Any] | str | None = None
    newlines_in_values: bool | None = None
    max_line: int = 64_000_000
    range_nbytes: int | None = None
    kernel: bool = True


@dataclass(frozen=True)
class CsvPlan:
    """What the samples settle, once."""

    names: list[str]
    types: dict[str, pa.DataType]
    shape: TableShape
    schema: Schema
    quotes: bool
    range_nbytes: int
    piece_nbytes: int
    growth: float
    first_unit: np.ndarray
    sizes: np.ndarray
    layout: csv_kernel.Layout | None
    specs: list[Spec]
    floats: frozenset[str]
    """Columns that the samples made floats: whole numbers in them keep their digits, or their rows are damaged."""
    plain: bool


def make_plan(paths: Sequence[str], sizes: np.ndarray, shape: TableShape, options: CsvOptions) -> CsvPlan:
    """Sample the files and settle names, types, categories and ranges."""
    fixed = {n: t for n, t in options.dtypes.items() if t != "category"}
    asked = _asked(options)
    found = csv_infer.infer(paths, options.dialect, options.names, fixed, asked)
    place = paths[0] if options.dialect.header else f"{paths[0]} (read without a header; header=True if it has one)"
    for name in options.dtypes:
        if name not in found.names:
            raise NotFound(f"dtypes= names column {name!r}. {place} has: {', '.join(found.names)}.")
    categories = _categories(found, options)
    shape = replace(shape, categories={**shape.categories, **categories}, nullable=frozenset())
    types = _wanted(found, shape, fixed, place)
    may_be_float = {n for n, t in types.items() if pt.is_boolean(t) or (pt.is_integer(t) and n not in fixed)}
    wide = frozenset(may_be_float & found.with_nulls)
    shape = replace(shape, nullable=wide)
    arrow = pa.schema(list(types.items()))
    schema = shape.schema(arrow, place)
    specs, _ = shape.specs(arrow, place)
    growth = _growth(found, schema)
    # At least four bytes: a byte order mark and what follows it must lie in one range.
    nbytes = max(4, options.range_nbytes or max(64_000, int(RANGE_NBYTES / max(1.0, growth))))
    piece = piece_nbytes(nbytes, growth, remote=storage.any_remote(paths))
    nbytes -= nbytes % piece  # a range is whole pieces: quotes are counted for both at once
    plain = np.fromiter((packing(path, options.dialect) is None for path in paths), np.bool_, len(paths))
    counts = np.where(plain, np.maximum(1, -(-sizes // nbytes)), 1)
    first = np.concatenate([[0], np.cumsum(counts)])
    layout = kernel_layout(found.names, types, shape, specs, options) if options.kernel else None
    return CsvPlan(
        names=found.names,
        types=types,
        shape=shape,
        schema=schema,
        quotes=found.quotes or options.newlines_in_values is True,
        range_nbytes=nbytes,
        piece_nbytes=piece,
        growth=growth,
        first_unit=first,
        sizes=sizes,
        layout=layout,
        specs=specs,
        floats=inferred_floats(types, {*fixed, *shape.categories}, specs),
        plain=bool(plain.all()),
    )


def _growth(found: csv_infer.Findings, schema: Schema) -> float:
    """Bytes of a block for each byte of text."""
    if not found.text_nbytes or not found.rows:
        return 1.0
    row = schema.row_nbytes if schema.fixed else found.row_nbytes / found.rows
    return float(row * found.rows / found.text_nbytes)


def _asked(options: CsvOptions) -> list[str] | None:
    """Columns whose categories the samples decide; None for all that are text."""
    if options.categories == "infer":
        return None
    given = options.categories if isinstance(options.categories, Mapping) else {}
    named = [name for name, kind in options.dtypes.items() if kind == "category" and name not in given]
    return named + [name for name, values in given.items() if isinstance(values, str) and values == "infer"]


def _categories(found: csv_infer.Findings, options: CsvOptions) -> dict[str, list[Any]]:
    """The values of each category column: as given, or those in the samples, sorted."""
    asked: dict[str, Any] = dict.fromkeys(_asked(options) or [], "infer")
    if options.categories == "infer":
        asked |= {
            n: "infer"
            for n in found.names
            if pt.is_string(found.types[n]) and options.dtypes.get(n, "category") == "category"
        }
    elif isinstance(options.categories, Mapping):
        asked |= options.categories
    elif options.categories is not None:
        raise InvalidInput(f"categories= must be 'infer' or a dict of lists, not {options.categories!r}.")
    for name in asked:
        if name not in found.names:
            raise NotFound(f"categories= names column {name!r}. There are: {', '.join(found.names)}.")
    return {n: found.values.get(n, []) if isinstance(v, str) else list(v) for n, v in asked.items()}


def _wanted(
    found: csv_infer.Findings, shape: TableShape, fixed: Mapping[str, Any], path: str
) -> dict[str, pa.DataType]:
    """The types of the columns to read: features are parsed as the matrix."""
    types = dict(found.types)
    needed = shape.columns_needed
    specs, _ = shape.specs(pa.schema(list(types.items())), path)
    for spec in specs:
        floating = spec.dtype is not None and spec.dtype.kind == "f" and spec.dtype.itemsize in (4, 8)
        for name in spec.sources:
            number = pt.is_integer(types[name]) or pt.is_floating(types[name])
            if floating and number and name not in fixed and name not in shape.categories:
                types[name] = pa.from_numpy_dtype(spec.dtype)
    return types if needed is None else {name: types[name] for name in needed}


def kernel_layout(
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    shape: TableShape,
    specs: Sequence[Spec],
    options: CsvOptions,
) -> csv_kernel.Layout | None:
    """Where the kernel puts each column, or None if a wanted column is not a plain number."""
    if shape.fill is not None or shape.categories or options.dialect.delimiter in "+-.0123456789eE \t"[:-1]:
        return None
    if any(map(_NUMBER.fullmatch, options.dialect.null_values)):  # the kernel would take -999 for a value
        return None
    kinds, slots = [csv_kernel.SKIP] * len(names), [0] * len(names)
    counts = {csv_kernel.MATRIX: 0, csv_kernel.FLOAT: 0, csv_kernel.INTEGER: 0}
    dtype: Any = np.dtype(np.float32)
    for spec in specs:
        if spec.matrix and (counts[csv_kernel.MATRIX] or str(spec.dtype) not in ("float32", "float64")):
            return None
        dtype = spec.dtype if spec.matrix else dtype
        for name in spec.sources:
            whole = pt.is_integer(types[name]) and name in (shape.nullable or ())
            kind = _kernel_kind(spec, pa.float64() if whole else types[name])
            at = names.index(name)
            if kind is None or kinds[at] != csv_kernel.SKIP:
                return None
            kinds[at], slots[at] = kind, counts[kind]
            counts[kind] += 1
    return csv_kernel.Layout(
        tuple(kinds), tuple(slots), options.dialect.delimiter, options.dialect.null_values, np.dtype(dtype)
    )


def _kernel_kind(spec: Spec, kind: pa.DataType) -> int | None:
    if spec.matrix:
        return csv_kernel.MATRIX if kind == pa.from_numpy_dtype(spec.dtype) else None
    if spec.dtype is not None and kind != pa.from_numpy_dtype(spec.dtype):
        return None
    if kind == pa.float64():
        return csv_kernel.FLOAT
    return csv_kernel.INTEGER if kind == pa.int64() else None

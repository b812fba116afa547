"""CSV files: byte ranges of about one block each, or one stream per compressed file.

Covers: `CsvSource`: units, types, projection, damaged rows, and the choice between the compiled kernel and PyArrow.
Does not cover: line boundaries (csv_split.py), types (csv_infer.py), parsing (csv_parse.py, csv_kernel.py).

Both parsers round correctly and give the same dtypes, so which of them read a range shows in its speed only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.block import Block, Column, Origin
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged
from penstock.core.schema import Schema
from penstock.core.source import OnError, blocks_from
from penstock.sources import csv_infer, csv_kernel, storage
from penstock.sources.csv_parse import Dialect, Parser, Rows, row_offsets
from penstock.sources.csv_split import BOM, OUTSIDE, TAIL_NBYTES, Cutter, QuoteIndex, Quoting, Stretch, stream_lines
from penstock.sources.table import Spec, TableShape

HEADER_NBYTES = 65_536
RANGE_NBYTES = 4_000_000
"""Text in a range. As fast as twice as much with 70 MB less in use: text goes to malloc's memory, which stays large."""


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
    growth: float
    first_unit: np.ndarray
    sizes: np.ndarray
    layout: csv_kernel.Layout | None
    specs: list[Spec]


class CsvSource:
    """Rows of CSV files. A unit is a byte range of a plain file, or a whole compressed file."""

    def __init__(
        self, paths: Sequence[str], shape: TableShape, options: CsvOptions, on_error: OnError | None = None
    ) -> None:
        self.paths, self.shape, self.options = paths, shape, options
        self._on_error = on_error if on_error is not None else OnError()
        self._same_header: set[int] = set()
        self._quoted: set[int] = set()

    @property
    def remote(self) -> bool:
        return storage.any_remote(self.paths)

    @property
    def label(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"csv({self.paths[0]}{more})"

    @property
    def on_error(self) -> OnError:
        return self._on_error

    @cached_property
    def plan(self) -> CsvPlan:
        """Sizes, names and types: a few small reads, at first use."""
        return make_plan(self.paths, self.shape, self.options)

    @cached_property
    def _index(self) -> QuoteIndex:
        return QuoteIndex(self.options.dialect.quoting, self.plan.range_nbytes)

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
        if csv_infer.compression_of(self.paths[file]) is None:
            text = min(text, int(self.plan.sizes[file]) - which * text)
        return int((text + TAIL_NBYTES) * (2.5 + 2 * self.plan.growth))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.shape, self.options, self.plan.range_nbytes)).encode())
        for path in self.paths:
            digest.update(f"{path}\0{storage.stamp(path)}\n".encode())
        return digest.hexdigest()[:32]

    def open(self, unit: int, part: int = 0) -> Iterator[Block]:
        """The blocks of a unit: one for a range, as many as it takes for a compressed file."""
        file, which = self._locate(unit)
        self._check_header(file)
        path = self.paths[file]
        kind = csv_infer.compression_of(path)
        if kind is None:
            if part == 0:
                yield self._range(file, which)
            return
        nbytes, quoting = self.plan.range_nbytes, self._quoting
        with csv_infer.open_decompressed(path, kind) as stream:
            try:
                found = stream_lines(path, stream, nbytes, quoting, self.options.max_line)
                if part == 0:
                    yield from blocks_from(islice(found, 1), 0, lambda lines: self._streamed(file, self._body(lines)))
                yield from blocks_from(found, part, lambda lines: self._streamed(file, lines))
            except (OSError, pa.ArrowInvalid) as error:
                self._on_error.bad(BadData(path, f"the {kind} stream is damaged or cut short ({error})"))

    def _streamed(self, file: int, lines: Stretch) -> Block:
        return self._block(file, lines, streamed=True)

    def _locate(self, unit: int) -> tuple[int, int]:
        if not 0 <= unit < self.num_units():
            raise InvalidInput(f"{self.label} has no unit {unit}: there are {self.num_units()}.")
        file = int(np.searchsorted(self.plan.first_unit, unit, side="right")) - 1
        return file, unit - int(self.plan.first_unit[file])

    @property
    def _quoting(self) -> Quoting:
        quoting = self.options.dialect.quoting
        return quoting if self.options.newlines_in_values is not False else Quoting(quoting.delimiter, None)

    def _range(self, file: int, which: int) -> Block:
        """One range. Quotes are counted from the start of the file only where there are any."""
        exact = self._quoting.quote is not None and (self.plan.quotes or file in self._quoted)
        lines = self._lines(file, which, exact)
        if not exact and (lines.has(self._quoting.quote) or (lines.error and self._quoting.quote is not None)):
            self._quoted.add(file)
            lines = self._lines(file, which, exact=True)
        return self._block(file, self._body(lines) if which == 0 else lines)

    def _lines(self, file: int, which: int, exact: bool) -> Stretch:
        path, nbytes = self.paths[file], self.plan.range_nbytes
        quoting = self._quoting if exact else Quoting(self._quoting.delimiter, None)
        state = self._index.state(path, which) if exact else OUTSIDE
        cutter = Cutter(path, int(self.plan.sizes[file]), quoting, self.options.max_line)
        return cutter.read(which * nbytes, (which + 1) * nbytes, state)

    def _body(self, lines: Stretch) -> Stretch:
        """The lines behind the header."""
        if not self.options.dialect.header:
            return lines
        return lines.after(self.options.dialect.first_line(lines.text)[1])

    def _block(self, file: int, lines: Stretch, streamed: bool = False) -> Block:
        path, plan, dialect = self.paths[file], self.plan, self.options.dialect
        quote = None if dialect.quote is None else ord(dialect.quote)
        quoted = lines.has(quote)
        if lines.error is not None:
            self._on_error.bad(lines.error)
        if plan.layout is not None and not quoted:
            parsed = csv_kernel.parse(lines.text, plan.layout)
            if parsed is not None:
                return self._numbers(parsed, origin_of(path, lines, None, self._quoting, streamed))
        rows = Parser(dialect, plan.names, plan.types).parse(lines.text, quoted)
        if rows.bad:
            self._report(path, lines, rows, streamed)
        origin = origin_of(path, lines, rows.numbers, self._quoting, streamed)
        return plan.shape.block(rows.table, origin, self._on_error)

    def _report(self, path: str, lines: Stretch, rows: Rows, streamed: bool) -> None:
        starts = row_offsets(lines.text, self._quoting)
        what = "decompressed byte" if streamed else "byte"
        for row, reason in rows.bad:
            # PyArrow takes a lone carriage return for a line's end: it may count more rows than there are lines.
            place = int(starts[min(row, len(starts) - 1)]) if len(starts) else 0
            self._on_error.bad(BadData(f"{path}, {what} {lines.offset + place}", reason))

    def _numbers(self, parsed: csv_kernel.Parsed, origin: Origin) -> Block:
        """The kernel's arrays under the names of the block's columns."""
        layout, columns = self.plan.layout, dict[str, Column]()
        assert layout is not None
        for spec in self.plan.specs:
            at = self.plan.names.index(spec.sources[0])
            columns[spec.name] = parsed.column(layout.kinds[at], layout.slots[at])
        return Block(columns, self.plan.schema.tree, origin)

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


def origin_of(path: str, lines: Stretch, numbers: np.ndarray | None, quoting: Quoting, streamed: bool) -> Origin:
    """Tells where a row is. A range is read once more for that, so that blocks need not keep their text."""
    offset, length = lines.offset, lines.stop - lines.start

    def origin(row: int) -> str:
        row = row if numbers is None else int(numbers[row])
        if streamed:
            return f"{path}, row {row} after decompressed byte {offset}"
        starts = row_offsets(storage.read_range(path, offset, length), quoting)
        return f"{path}, byte {offset + int(starts[row])}" if row < len(starts) else f"{path}, byte {offset}"

    return origin


def read_head(path: str, options: CsvOptions) -> bytes:
    """The first bytes of a file, enough for its header."""
    kind = csv_infer.compression_of(path)
    if kind is not None:
        return csv_infer.read_some(path, kind, HEADER_NBYTES).removeprefix(BOM)
    nbytes = HEADER_NBYTES
    while True:
        head = storage.read_range(path, 0, nbytes)
        if b"\n" in head or len(head) < nbytes or nbytes > options.max_line:
            return head.removeprefix(BOM)
        nbytes *= 4


def make_plan(paths: Sequence[str], shape: TableShape, options: CsvOptions) -> CsvPlan:
    """Sample the files and settle names, types, categories and ranges."""
    fixed = {n: t for n, t in options.dtypes.items() if t != "category"}
    asked = _asked(options)
    found = csv_infer.infer(paths, options.dialect, options.names, fixed, asked)
    for name in options.dtypes:
        if name not in found.names:
            raise NotFound(f"dtypes= names column {name!r}. {paths[0]} has: {', '.join(found.names)}.")
    categories = _categories(found, options)
    shape = replace(shape, categories={**shape.categories, **categories}, nullable=frozenset())
    types = _wanted(found, shape, fixed, paths[0])
    wide = frozenset(n for n, t in types.items() if pt.is_boolean(t) and n in found.with_nulls)
    shape = replace(shape, nullable=wide)
    arrow = pa.schema(list(types.items()))
    schema = shape.schema(arrow, paths[0])
    specs, _ = shape.specs(arrow, paths[0])
    growth = _growth(found, schema)
    # At least four bytes: a byte order mark and what follows it must lie in one range.
    nbytes = max(4, options.range_nbytes or max(64_000, int(RANGE_NBYTES / max(1.0, growth))))
    sizes = np.fromiter(map(storage.file_size, paths), np.int64, len(paths))
    plain = np.fromiter((csv_infer.compression_of(path) is None for path in paths), np.bool_, len(paths))
    counts = np.where(plain, np.maximum(1, -(-sizes // nbytes)), 1)
    first = np.concatenate([[0], np.cumsum(counts)])
    layout = kernel_layout(found.names, types, shape, specs, options) if options.kernel else None
    return CsvPlan(found.names, types, shape, schema, found.quotes, nbytes, growth, first, sizes, layout, specs)


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
    """The types of the columns to read: integers with missing values are floats, features are parsed as the matrix."""
    types = dict(found.types)
    for name, kind in types.items():
        if pt.is_integer(kind) and name in found.with_nulls and name not in fixed and shape.fill is None:
            types[name] = pa.float64()
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
    kinds, slots = [csv_kernel.SKIP] * len(names), [0] * len(names)
    counts = {csv_kernel.MATRIX: 0, csv_kernel.FLOAT: 0, csv_kernel.INTEGER: 0}
    dtype: Any = np.dtype(np.float32)
    for spec in specs:
        if spec.matrix and (counts[csv_kernel.MATRIX] or str(spec.dtype) not in ("float32", "float64")):
            return None
        dtype = spec.dtype if spec.matrix else dtype
        for name in spec.sources:
            kind = _kernel_kind(spec, types[name])
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

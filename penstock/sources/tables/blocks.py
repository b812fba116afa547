"""From Arrow record batches to blocks: which columns a sample shows, and how.

Covers: `TableShape`: projection, `(x, y)` from `features=`/`label=`, one row-major matrix for numeric features,
missing values, categories, and the schema that follows from all that.
Does not cover: reading any format (csv.py, parquet.py, json.py, sql.py), holding rows (core/block.py).

Numbers, booleans, dates and fixed-size lists become NumPy arrays; text, bytes, lists and structs stay Arrow arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import arrow_of, numbers
from penstock.core.block import Block, Column, Origin
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.sources.tables.column import (
    beyond_float64,
    is_numeric,
    is_whole_decimal,
    not_text,
    plain_column,
    plain_field,
    plain_type,
    to_column,
)
from penstock.sources.tables.matrix import is_laid, lay, side_by_side
from penstock.sources.tables.nested import missing_inside, without_python_form

Names = str | Sequence[str] | None

Read = Callable[[Sequence[str]], pa.RecordBatch]
"""Reads the named columns of the rows at hand."""

_PART_COLUMNS, _PART_CELLS = 8, 400_000
"""Columns of a matrix that are read together: at least so many, and more of few rows."""

_PARTED_CELLS = 1 << 16
"""Matrices below this are read at once: they are small beside what reading twice takes."""


@dataclass(frozen=True)
class TableShape:
    """How rows of a table become samples: a dict of columns, or `(x, y)` when `label` or `features` is given.

    `matrix` None makes x one (rows, features) matrix of `dtype` when all features are numeric, True demands it,
    False never does. `nullable` names the integer and boolean columns that may have missing values (they become
    float64, and integers that a float64 would round are reported); None lets each block follow its data. `fill`
    replaces missing values, by column or for all.
    `categories` turns a column into the position of its value in a list, as int32; missing is -1.
    """

    features: Names = None
    label: Names = None
    matrix: bool | None = None
    dtype: Any = None
    columns: Sequence[str] | None = None
    nullable: frozenset[str] | None = None
    fill: Mapping[str, Any] | float | str | None = None
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    check_text: bool = False
    """Whether text has to be checked for UTF-8: some readers have done so while they parsed."""

    def __post_init__(self) -> None:
        if self.matrix and self.features is None and self.label is None:
            raise InvalidInput("matrix=True needs features= or label=: only then is there an x to make a matrix of.")
        if self.dtype is not None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        for name in ("features", "columns", "label"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, str):
                object.__setattr__(self, name, tuple(given))
                if not given:
                    raise InvalidInput(f"{name}= is an empty list. Leave it out, or name at least one column.")

    @property
    def columns_needed(self) -> list[str] | None:
        """Columns to read, or None for all of them."""
        if self.features is not None:
            return list(dict.fromkeys([*_listed(self.features), *_listed(self.label)]))
        return list(self.columns) if self.columns is not None and self.label is None else None

    def schema(self, arrow: pa.Schema, where: str = "the table") -> Schema:
        """The columns and tree of the samples that a table of this Arrow schema gives."""
        specs, tree = self.specs(arrow, where)
        return Schema(tuple(self._field(spec, arrow) for spec in specs), tree)

    def specs(self, arrow: pa.Schema, where: str = "the table") -> tuple[list[Spec], Tree]:
        """What each column of a block is made of, and the tree that refers to them."""
        found: list[Spec] = []
        return found, self._walk(arrow, where, found.append)

    def block(
        self,
        rows: pa.RecordBatch | pa.Table,
        origin: Origin | None = None,
        on_error: OnError | None = None,
        buffers: Buffers = NEW_MEMORY,
    ) -> Block:
        """Rows as a block. Rows that cannot be read (unknown category, missing integer) go to `on_error`."""
        if isinstance(rows, pa.Table):
            rows = one_batch(rows, origin)
        place = origin

        def where() -> str:
            return "the table" if place is None else place(0)

        specs: list[Spec] = []
        tree = self._walk(rows.schema, where, specs.append)
        columns, _, origin = self._columns(rows, specs, origin, on_error, buffers)
        if any(spec.matrix for spec in specs):
            columns = {name: _own(column, buffers) for name, column in columns.items()}
        return Block(columns, tree, origin)

    def block_by_parts(
        self,
        arrow: pa.Schema,
        nrows: int,
        read: Read,
        origin: Origin | None,
        on_error: OnError | None,
        buffers: Buffers = NEW_MEMORY,
    ) -> Block:
        """As `block`, of columns that are read as they are needed.

        Those of a matrix are read a few at a time and laid into it, so that the rows are never in memory twice.
        """
        specs: list[Spec] = []
        tree = self._walk(arrow, "the table", specs.append)
        laid = [spec for spec in specs if self._can_be_laid(spec, nrows)]
        rest = [spec for spec in specs if spec not in laid]
        columns: dict[str, Column] = {}
        kept: np.ndarray | None = None
        if rest:
            names = list(dict.fromkeys(name for spec in rest for name in spec.sources))
            columns, kept, origin = self._columns(read(names), rest, origin, on_error, buffers)
            columns = {name: _own(column, buffers) if laid else column for name, column in columns.items()}
        for spec in laid:
            matrix = buffers.empty((nrows, len(spec.sources)), spec.dtype)
            step = max(_PART_COLUMNS, _PART_CELLS // max(1, nrows))
            for first in range(0, len(spec.sources), step):
                part = replace(spec, sources=spec.sources[first : first + step])
                arrays, _ = self._plain(read(part.sources), [part], origin, on_error)
                lay([arrays[name] for name in part.sources], matrix, first)
            columns[spec.name] = matrix if kept is None else matrix[kept]
        return Block({spec.name: columns[spec.name] for spec in specs}, tree, origin)

    def _columns(
        self,
        rows: pa.RecordBatch,
        specs: Sequence[Spec],
        origin: Origin | None,
        on_error: OnError | None,
        buffers: Buffers,
    ) -> tuple[dict[str, Column], np.ndarray | None, Origin | None]:
        """The columns of a block, which rows of the batch they are unless all, and where these came from."""
        arrays, keep = self._plain(rows, specs, origin, on_error)
        kept: np.ndarray | None = None
        if keep is not None:
            kept = np.flatnonzero(keep)
            arrays = {name: array.take(arrow_of(kept)) for name, array in arrays.items()}
            origin = _moved(origin, kept)
        return {spec.name: self._column(spec, arrays, buffers) for spec in specs}, kept, origin

    def _can_be_laid(self, spec: Spec, nrows: int) -> bool:
        """Whether a matrix can be filled part by part: a row of it is never left out, and it is worth it."""
        wide = spec.matrix and spec.dtype.kind == "f" and len(spec.sources) > _PART_COLUMNS
        worth_it = wide and nrows * len(spec.sources) >= _PARTED_CELLS and is_laid(spec.dtype)
        return worth_it and self.categories.keys().isdisjoint(spec.sources)

    def _walk(self, arrow: pa.Schema, where: str | Callable[[], str], emit: Callable[[Spec], object]) -> Tree:
        """Name the output columns in order; return the tree that refers to them."""
        if self.features is None and self.label is None:
            names = list(self.columns) if self.columns is not None else arrow.names
            _require(names, arrow, where)
            for name in names:
                emit(Spec(name, (name,), False, None))
            return {name: name for name in names}
        features: Names = self.features
        if features is None:
            labels = _listed(self.label)
            pool = list(self.columns) if self.columns is not None else arrow.names
            features = [name for name in pool if name not in labels]
        _require([*_listed(features), *_listed(self.label)], arrow, where)
        x = self._side("x", features, arrow, emit)
        return x if self.label is None else (x, self._side("y", self.label, arrow, emit))

    def _side(self, side: str, names: Names, arrow: pa.Schema, emit: Callable[[Spec], object]) -> Tree:
        """The x or the y of a sample: one column, one matrix, or a dict of columns."""
        dtype = self.dtype if side == "x" else None
        if isinstance(names, str):
            emit(Spec(side, (names,), False, dtype))
            return side
        chosen = tuple(names or ())
        odd = [n for n in chosen if not is_numeric(self._type(n, arrow))]
        if self.matrix and odd and side == "x":
            raise InvalidInput(
                f"matrix=True, but column {odd[0]!r} is {arrow.field(odd[0]).type}. "
                f"Leave it out of features=, give it categories=, or use matrix=False."
            )
        if self.matrix is not False and not odd:
            emit(Spec(side, chosen, True, self._matrix_dtype(side, chosen, arrow)))
            return side
        for name in chosen:
            emit(Spec(f"{side}.{name}", (name,), False, None))
        return {name: f"{side}.{name}" for name in chosen}

    def _matrix_dtype(self, side: str, names: Sequence[str], arrow: pa.Schema) -> np.dtype[Any]:
        if side == "x":
            return np.dtype(np.float32) if self.dtype is None else self.dtype
        fields = [plain_field(n, self._type(n, arrow), self._null_is_nan(n)) for n in names]
        return np.result_type(*[f.dtype for f in fields])

    def _type(self, name: str, arrow: pa.Schema) -> pa.DataType:
        return pa.int32() if name in self.categories else plain_type(arrow.field(name).type)

    def _null_is_nan(self, name: str, array: pa.Array | None = None) -> bool:
        if self.nullable is None:
            return array is not None and bool(array.null_count)
        return name in self.nullable and self._fill(name) is None

    def _fill(self, name: str) -> Any:
        return self.fill.get(name) if isinstance(self.fill, Mapping) else self.fill

    def _field(self, spec: Spec, arrow: pa.Schema) -> Field:
        if spec.matrix:
            return Field(spec.name, spec.dtype, (len(spec.sources),))
        name = spec.sources[0]
        found = plain_field(spec.name, self._type(name, arrow), self._null_is_nan(name))
        return found if spec.dtype is None or found.dtype == OBJECT else Field(spec.name, spec.dtype, found.shape)

    def _plain(
        self, rows: pa.RecordBatch, specs: Sequence[Spec], origin: Origin | None, on_error: OnError | None
    ) -> tuple[dict[str, pa.Array], np.ndarray | None]:
        """The source columns filled, decoded and coded; and which rows to keep, unless all."""
        arrays: dict[str, pa.Array] = {}
        keep: np.ndarray | None = None
        targets = {name: spec for spec in specs for name in spec.sources}
        for name, spec in targets.items():
            raw = rows.column(name)
            array = plain_column(raw, self._fill(name))
            bad: np.ndarray | None = None
            if name in self.categories:
                coded = pc.index_in(array, value_set=_value_set(self.categories[name], array.type))
                if coded.null_count:
                    bad = numbers(pc.and_(pc.is_null(coded), pc.is_valid(array)))
                array = pc.fill_null(coded, -1)
                reason = f"column {name!r} has a value that is not in its categories"
            elif array.null_count and not self._may_be_null(name, array.type, spec):
                bad = numbers(pc.is_null(array))
                reason = f"column {name!r} ({array.type}) has a missing value where none was expected"
            elif spec.dtype is None and not spec.matrix and self._null_is_nan(name, array):
                bad = beyond_float64(array)
                reason = f"column {name!r} has missing values, so it is float64, which would round this {array.type}"
            elif is_whole_decimal(raw.type) and spec.dtype is None and not spec.matrix and pt.is_floating(array.type):
                bad = beyond_float64(raw)
                reason = f"column {name!r} is {raw.type}, which is read as float64, and that would round this one"
            elif pt.is_nested(array.type):
                bad, reason = self._unfit_inside(name, array)
            elif self.check_text:
                bad, reason = not_text(array), f"column {name!r} is not UTF-8"
            if bad is not None and bad.any():
                _report(bad if keep is None else bad & keep, reason, name, raw, origin, on_error)
                keep = ~bad if keep is None else keep & ~bad
            arrays[name] = array
        return arrays, keep

    def _unfit_inside(self, name: str, array: pa.Array) -> tuple[np.ndarray | None, str]:
        """Which lists and structs hold something that has no exact form, and why."""
        text = not_text(array) if self.check_text else None
        if text is not None:
            return text, f"column {name!r} is not UTF-8"
        missing = missing_inside(array)
        if missing is not None:
            return missing, f"column {name!r} ({array.type}) has a missing value inside of a list"
        far = without_python_form(array)
        return far, f"column {name!r} ({array.type}) holds a date beyond the years 1 to 9999 of Python's calendar"

    def _may_be_null(self, name: str, kind: pa.DataType, spec: Spec) -> bool:
        if spec.dtype is not None:
            return bool(spec.dtype.kind == "f")
        integral = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        return not integral or self.nullable is None or name in self.nullable

    def _column(self, spec: Spec, arrays: Mapping[str, pa.Array], buffers: Buffers) -> Column:
        if spec.matrix:
            return side_by_side([arrays[name] for name in spec.sources], spec.dtype, buffers)
        name = spec.sources[0]
        column = to_column(arrays[name], self._null_is_nan(name))
        if spec.dtype is not None and isinstance(column, np.ndarray) and column.dtype != OBJECT:
            return column.astype(spec.dtype, copy=False)
        return column


@dataclass(frozen=True)
class Spec:
    """One column of the block: the table columns it is made of, and whether they are laid side by side."""

    name: str
    sources: tuple[str, ...]
    matrix: bool
    dtype: Any


def one_batch(table: pa.Table, origin: Origin | None) -> pa.RecordBatch:
    """A table in one piece."""
    parts = table.combine_chunks().to_batches()
    if len(parts) > 1:  # a text column of more than 2 GB does not fit one Arrow array
        raise BadData(_where(origin, 0), f"{table.num_rows} rows do not fit one record batch")
    return parts[0] if parts else pa.RecordBatch.from_pylist([], schema=table.schema)


def _own(column: Column, buffers: Buffers) -> Column:
    """A copy of what is only seen in Arrow's memory: a label beside a matrix would keep pages of all columns there."""
    if not isinstance(column, np.ndarray) or column.flags.writeable:
        return column
    own = buffers.empty(column.shape, column.dtype)
    own[...] = column
    return own


def _listed(names: Names) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def _require(names: Sequence[str], arrow: pa.Schema, where: str | Callable[[], str]) -> None:
    there = set(arrow.names)
    for name in names:
        if name not in there:
            place = where if isinstance(where, str) else where()
            shown = ", ".join(arrow.names[:50]) + (", ..." if len(arrow.names) > 50 else "")
            raise NotFound(f"{place} has no column {name!r}. There are: {shown}.")


def _value_set(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidInput(f"categories {list(values)[:5]} do not fit a column of {kind}: {error}") from error


def _report(
    bad: np.ndarray, reason: str, name: str, raw: pa.Array, origin: Origin | None, on_error: OnError | None
) -> None:
    """Tell each bad row to the policy; without one, the first stops."""
    remedy = f"Give fill={{{name!r}: ...}}, categories=, dtypes= (in SQL a CAST) that allow for it, or on_error='skip'."
    if "would round" in reason:
        remedy = f"Give fill={{{name!r}: ...}} for the missing ones: integers stay exact then. Or on_error='skip'."
        if "is read as float64" in reason:
            remedy = "Store the column (or CAST it in the query) as int64 or as text. Or on_error='skip'."
    elif "inside of a list" in reason:
        remedy = f"Give fill={{{name!r}: ...}} for the missing ones, or on_error='skip'."
    elif "calendar" in reason:
        remedy = "Leave the column out with columns=, or on_error='skip'."
    for row in np.flatnonzero(bad):
        shown = _shown(raw[int(row)])
        error = BadData(_where(origin, int(row)), f"{reason}{shown}. {remedy}")
        if on_error is None:
            raise error
        on_error.bad(error)


def _shown(value: pa.Scalar) -> str:
    try:
        return f" ({str(value.as_py())[:80]!r})" if value.is_valid else ""
    except (ValueError, OverflowError):  # no text, or no time that Python has
        return ""


def _where(origin: Origin | None, row: int) -> str:
    return f"row {row} of a table" if origin is None else origin(row)


def _moved(origin: Origin | None, rows: np.ndarray) -> Origin | None:
    return None if origin is None else (lambda i: origin(int(rows[i])))

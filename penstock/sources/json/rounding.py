"""Whole numbers in columns of floats that a float would change.

Covers: finding the lines whose whole numbers lose digits, once a column has values beyond 2^53.
Does not cover: columns of integers only, which stay int64 (parse.py), integers beyond 64 bits (values.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.sources.tables.column import EXACT, loses_digits
from penstock.sources.text.lines import line_starts

LONG = re.compile(rb"\d{16}")

_READABLE = 4000


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of a type are or hold floats."""
    if pt.is_struct(kind):
        return any(has_floats(field.type) for field in kind)
    return has_floats(kind.value_type) if pt.is_list(kind) else pt.is_float64(kind)


def _is_large(array: pa.Array) -> bool:
    """Whether some float inside is beyond 2^53."""
    if pt.is_struct(array.type):
        return any(_is_large(array.field(i)) for i in range(array.type.num_fields))
    if pt.is_list(array.type):
        return _is_large(array.flatten())
    if not pt.is_float64(array.type) or array.null_count == len(array):
        return False
    ends = pc.min_max(array)
    return bool(max(abs(ends["min"].as_py()), abs(ends["max"].as_py())) >= EXACT)


def without_rounded(
    table: pa.Table, starts: np.ndarray | None, text: memoryview, paths: Mapping[str, Sequence[str]]
) -> tuple[pa.Table, np.ndarray | None, list[tuple[int, str]]]:
    """The rows whose numbers are whole, where their lines start, and the lines left out.

    `starts` is None where all lines of the text are rows.
    """
    if not any(_is_large(chunk) for name in paths for chunk in table.column(name).chunks):
        return table, starts, []
    every = line_starts(text, blank=False)
    places = every if starts is None else starts
    ends = [*every[1:].tolist(), len(text)]
    end_of = dict(zip(every.tolist(), ends, strict=True))
    lines = [bytes(text[place : end_of[place]]) for place in places.tolist()]
    found = _rounded_rows(lines, {name: (path, table.schema.field(name).type) for name, path in paths.items()})
    if not found:
        return table, starts, []
    keep = np.ones(len(lines), np.bool_)
    keep[[*found]] = False
    return table.filter(pa.array(keep)), places[keep], [(int(places[row]), why) for row, why in found.items()]


def _rounded_rows(lines: Sequence[bytes], columns: Mapping[str, tuple[Sequence[str], pa.DataType]]) -> dict[int, str]:
    """Rows with a whole number that a float changed, and why; of each column, its path and type."""
    found = {}
    for row, line in enumerate(lines):
        if LONG.search(line):
            read = json.loads(line, parse_int=_whole)
            reasons = (_reason(name, _at(read, path), kind) for name, (path, kind) in columns.items())
            reason = next(filter(None, reasons), "")
            if reason:
                found[row] = reason
    return found


def _whole(digits: str) -> int:
    """A whole number, or the start of one that is so long that Python refuses to read it. No float holds either."""
    return int(digits[:_READABLE])


def _at(found: Any, path: Sequence[str]) -> Any:
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _reason(name: str, value: Any, kind: pa.DataType) -> str:
    for number in _whole_numbers(value, kind):
        if loses_digits(number):
            return (
                f"field {name!r} has numbers with a point, so it is float64, which would round {str(number)[:40]}. "
                f"Give dtypes={{{name!r}: 'float64'}} if digits may be lost, or on_error='skip'"
            )
    return ""


def _whole_numbers(value: Any, kind: pa.DataType) -> Iterator[int]:
    """The whole numbers that are read as floats."""
    if pt.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            yield from _whole_numbers(value.get(field.name), field.type)
    elif pt.is_list(kind) and isinstance(value, list):
        for item in value:
            yield from _whole_numbers(item, kind.value_type)
    elif pt.is_float64(kind) and isinstance(value, int) and not isinstance(value, bool):
        yield value

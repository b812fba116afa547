"""Whole numbers in columns of floats that a float would change: ids among numbers such as 7.02608E+17.

Covers: telling whether a stretch may hold some, once its floats reach 2^53, and finding the cells that lose digits.
Does not cover: columns of whole numbers only, which have exact types (long_integers.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.arrow_numbers import numbers
from penstock.sources.tables.blocks import Spec
from penstock.sources.tables.column import EXACT, loses_digits

_DIGITS = 16  # of 2^53
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_READABLE = 4000
"""Digits that Python reads as an integer. No float holds as many."""


def inferred_floats(
    types: Mapping[str, pa.DataType], chosen: Collection[str], specs: Collection[Spec]
) -> frozenset[str]:
    """Columns that are float64 because of their values, not because the user chose that."""
    asked = {name for spec in specs if spec.matrix or spec.dtype is not None for name in spec.sources}
    return frozenset(n for n, kind in types.items() if pt.is_float64(kind) and n not in asked and n not in chosen)


def is_large(floats: np.ndarray) -> bool:
    """Whether some float is 2^53 or more, or as far below zero. Missing values count for nothing."""
    if not floats.size:
        return False
    return bool(np.fmax.reduce(floats, axis=None) >= EXACT or np.fmin.reduce(floats, axis=None) <= -EXACT)


def may_hold_long_integer(text: bytes | memoryview) -> bool:
    """Whether a text has 16 digits or more in a row that are no part of a number with a point or an exponent."""
    data = np.frombuffer(text, np.uint8)
    run = (data - np.uint8(ord("0"))) < 10
    for step in (1, 2, 4, 8):  # of 2, 4, 8 and then 16 digits
        run = run[:-step] & run[step:]
    starts = np.flatnonzero(run)
    if not len(starts):
        return False
    apart = np.flatnonzero(np.diff(starts) > 1)
    first = starts[np.concatenate([[0], apart + 1])]
    behind = starts[np.concatenate([apart, [len(starts) - 1]])] + _DIGITS
    before = np.where(first > 0, data[first - 1], 0)
    after = np.where(behind < len(data), data[np.minimum(behind, len(data) - 1)], 0)
    return bool((~np.isin(before, list(b".eE")) & ~np.isin(after, list(b".eE"))).any())


def rounded_cells(name: str, floats: pa.ChunkedArray, cells: pa.ChunkedArray) -> dict[int, str]:
    """Rows with a whole number that a float changed, and why; `cells` are the floats' texts."""
    values = numbers(floats.combine_chunks())
    found = {}
    for row in np.flatnonzero(np.abs(values) >= EXACT).tolist():
        cell = cells[row].as_py().strip(b" \t")
        if _WHOLE.fullmatch(cell) and loses_digits(int(cell[:_READABLE])):
            found[row] = (
                f"column {name!r} is float64, since some of its values are not whole numbers, and would round "
                f"{cell[:40].decode()}. Give dtypes={{{name!r}: 'string'}}, 'float64' if digits may be lost, or "
                f"on_error='skip'"
            )
    return found

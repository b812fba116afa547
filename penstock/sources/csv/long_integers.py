"""Whole numbers of 19 digits and more: ids and hashes, which a float would round.

Covers: telling columns of them from columns of floats, in a sample that PyArrow has read.
Does not cover: reading them, which PyArrow does exactly once it knows the type (arrow.py).

PyArrow takes a column for float64 as soon as one of its integers does not fit int64.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

LONG = re.compile(rb"\d{19}")


def exact_type(name: str, cells: pa.ChunkedArray) -> pa.DataType:
    """uint64 for a column of whole numbers up to 2^64, float64 if some are not whole. ValueError for others."""
    text = pc.utf8_trim_whitespace(cells.drop_null())
    if not len(text) or not pc.all(pc.match_substring_regex(text, r"^[+-]?[0-9]+$")).as_py():
        return pa.float64()
    values = [int(cell) for cell in pc.unique(text).to_pylist()]
    if min(values) >= 0 and max(values) < 2**64:
        return pa.uint64()
    raise ValueError(too_long(name, max(values, key=abs)))


def too_long(name: str, value: int) -> str:
    """Why a column has no exact type, and what to choose."""
    return (
        f"column {name!r} holds whole numbers such as {str(value)[:40]}, which float64 would round and neither int64 "
        f"nor uint64 can hold all of. Give dtypes={{{name!r}: 'string'}}, or 'float64' if digits may be lost"
    )

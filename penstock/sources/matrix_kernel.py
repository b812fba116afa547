"""Compiled: columns in memory to the rows of a matrix. Importing this imports Numba.

Covers: float32 from floats and integers, eight-byte numbers as they are.
Does not cover: missing values, other types, when it is used (sources/matrix.py).

Tiles of rows and columns keep the part that is written in the first cache and the columns that are read few enough
for the page tables, however many there are.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.core.raw_memory import Number, load_f32, load_f64, load_i32, load_i64, store_f32, store_i64

_ROWS, _COLUMNS = 256, 32


@numba.njit("void(int64, int64, UniTuple(int64, 2), int64, int64)", nogil=True, cache=True)
def _column_to_f32(source: Number, kind: Number, rows: tuple[Number, Number], place: Number, stride: Number) -> None:
    """Some rows of one column."""
    if kind == 0:
        for row in range(rows[0], rows[1]):
            store_f32(place + stride * row, load_f32(source + 4 * row))
    elif kind == 1:
        for row in range(rows[0], rows[1]):
            store_f32(place + stride * row, np.float32(load_f64(source + 8 * row)))
    elif kind == 2:
        for row in range(rows[0], rows[1]):
            store_f32(place + stride * row, np.float32(load_i32(source + 4 * row)))
    else:
        for row in range(rows[0], rows[1]):
            store_f32(place + stride * row, np.float32(load_i64(source + 8 * row)))


@numba.njit("void(int64[::1], int64[::1], UniTuple(int64, 2), int64)", nogil=True, cache=True)
def to_f32(addresses: np.ndarray, kinds: np.ndarray, shape: tuple[Number, Number], target: Number) -> None:
    """Columns at the addresses, of the kinds float32, float64, int32, int64 (0 to 3), to float32 from `target` on.

    `shape` is that of the whole matrix, of which these are neighbouring columns.
    """
    nrows, stride, count = shape[0], 4 * shape[1], len(addresses)
    plain = True
    for column in range(count):
        plain = plain and kinds[column] == 0
    for top in range(0, nrows, _ROWS):
        bottom = min(nrows, top + _ROWS)
        if plain:
            for left in range(0, count, _COLUMNS):
                right = min(count, left + _COLUMNS)
                for row in range(top, bottom):
                    line = target + stride * row
                    for column in range(left, right):
                        store_f32(line + 4 * column, load_f32(addresses[column] + 4 * row))
            continue
        for column in range(count):
            _column_to_f32(addresses[column], kinds[column], (top, bottom), target + 4 * column, stride)


@numba.njit("void(int64[::1], UniTuple(int64, 2), int64)", nogil=True, cache=True)
def copy_u64(addresses: np.ndarray, shape: tuple[Number, Number], target: Number) -> None:
    """Columns of eight-byte numbers at the addresses to neighbouring columns from `target` on."""
    nrows, stride, count = shape[0], 8 * shape[1], len(addresses)
    for top in range(0, nrows, _ROWS):
        bottom = min(nrows, top + _ROWS)
        for left in range(0, count, _COLUMNS):
            right = min(count, left + _COLUMNS)
            for row in range(top, bottom):
                line = target + stride * row
                for column in range(left, right):
                    store_i64(line + 8 * column, load_i64(addresses[column] + 8 * row))

"""The compiled code for JSON objects of numbers. Importing this imports Numba, so only json_numbers.py does, and late.

Covers: lines that hold the expected keys in the expected order, each with a plain number.
Does not cover: anything else: such lines are handed back and PyArrow reads them (json_parse.py).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from penstock.sources.csv_numba import _any_float, _integer, _made, _plain_float
from penstock.sources.csv_number import Compiled, _byte, types

COMMA, OPEN, CLOSE, SPACE, NEWLINE, RETURN, ZERO, POINT, MINUS = 44, 123, 125, 32, 10, 13, 48, 46, 45


@nb.njit(nogil=True, inline="always")
def _skip_spaces(text: Any, at: Any, n: Any) -> Any:
    while at < n and _byte(text, at) == SPACE:
        at += 1
    return at


@nb.njit(nogil=True, inline="always")
def _matches(text: Any, at: Any, n: Any, key: Any, start: Any, end: Any) -> Any:
    if at + end - start > n:
        return False
    while start < end and _byte(text, at) == _byte(key, start):
        at += 1
        start += 1
    return start == end


@nb.njit(nogil=True, inline="always")
def _strict(text: Any, start: Any, end: Any) -> Any:
    """Whether a number that was read is one that JSON allows: no leading zeros, digits on both sides of the point."""
    first = start + 1 if _byte(text, start) == MINUS else start
    if first >= end:
        return False
    zero = _byte(text, first) == ZERO and first + 1 < end and np.uint8(_byte(text, first + 1) - ZERO) <= 9
    return not zero and np.uint8(_byte(text, first) - ZERO) <= 9 and _byte(text, end - 1) != POINT


def _objects(text: Any, keys: Any, plan: Any, out: Any) -> Any:
    """Parse every line; the rows, or -1 where a line is not for this kernel. `keys` are bytes and their ends."""
    matrix, floats, integers = out
    n, at, row, columns = len(text), 0, 0, plan.shape[1]
    while at < n:
        if _byte(text, at) != OPEN:
            return -1
        at += 1
        for column in range(columns):
            at = _skip_spaces(text, at, n)
            begin, end = keys[1][column], keys[1][column + 1]
            if not _matches(text, at, n, keys[0], begin, end):
                return -1
            at = _skip_spaces(text, at + end - begin, n)
            kind, slot, start, stop = plan[0, column], plan[1, column], at, COMMA if column + 1 < columns else CLOSE
            if kind == 3:
                while at < n and _byte(text, at) != stop:
                    at += 1
                integers[slot, row], final = _integer(text, start, at)
            else:
                # As PyArrow does it: a double first, then whatever the matrix holds.
                value, final, at = _plain_float(text, start, n, stop, False)
                if not final:
                    value, final, at = _any_float(text, start, n, stop, False)
                if kind == 1:
                    matrix[row, slot] = value
                elif kind == 2:
                    floats[slot, row] = value
            if not final or at >= n or _byte(text, at) != stop or not _strict(text, start, at):
                return -1
            at += 1
        if at < n and _byte(text, at) == RETURN:
            at += 1
        if at < n and _byte(text, at) != NEWLINE:
            return -1
        at += 1
        row += 1
    return row


def compiled(dtype: np.dtype[Any]) -> Compiled:
    """The kernel for a matrix of this dtype, from Numba's cache where it can be."""
    text = types.Array(types.uint8, 1, "C", readonly=True)
    number = types.float32 if dtype.itemsize == 4 else types.float64
    signature = types.int64(
        text,
        types.Tuple((text, types.int64[::1])),
        types.int64[:, ::1],
        types.Tuple((number[:, ::1], types.float64[:, ::1], types.int64[:, ::1])),
    )
    made: Compiled = _made(_objects, signature)
    return made

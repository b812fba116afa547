"""The compiled code of the CSV kernel. Importing this imports Numba, so only csv_kernel.py does, and late.

Covers: the walk over lines and cells.
Does not cover: numbers from digits (csv_number.py), when to use it and what it cannot settle (csv_kernel.py).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from penstock.sources.csv_number import (
    PLAIN_NBYTES,
    POWERS,
    Compiled,
    _as_double,
    _byte,
    _digits,
    _fits_float,
    _number,
    _plain,
    types,
)


@nb.njit(nogil=True)
def _is_null(text: Any, start: Any, end: Any, nulls: Any, ends: Any) -> Any:
    """Whether a cell is one of the words for a missing value."""
    for k in range(len(ends) - 1):
        if ends[k + 1] - ends[k] == end - start:
            same = True
            for i in range(end - start):
                if text[start + i] != nulls[ends[k] + i]:
                    same = False
                    break
            if same:
                return True
    return False


@nb.njit(nogil=True, inline="always")
def _integer(text: Any, start: Any, end: Any) -> Any:
    """An integer of at most 18 digits and whether the cell is one."""
    at = start + 1 if start < end and text[start] == 45 else start
    value, stop = _digits(text, at, end, np.uint64(0))
    good = stop == end and 0 < stop - at <= 18
    return (-np.int64(value) if at > start else np.int64(value)), good


@nb.njit(nogil=True, inline="always")
def _cell_end(text: Any, at: Any, n: Any, delimiter: Any) -> Any:
    while at < n and _byte(text, at) != delimiter and _byte(text, at) != 10 and _byte(text, at) != 13:
        at += 1
    return at


@nb.njit(nogil=True)
def _any_float(text: Any, start: Any, n: Any, delimiter: Any, single: Any) -> Any:
    """A cell of any shape as a double, whether that is final, and where the cell ends. Not inlined: it is rare."""
    bits, at = _number(text, start, n, POWERS)
    stop = _byte(text, at) if at < n else np.uint8(10)
    final = (stop == delimiter or stop == 10 or stop == 13) and bits != np.uint64(0xFFFFFFFFFFFFFFFF)
    if final and single:
        final = _fits_float(bits)
    if not final:
        at = _cell_end(text, at, n, delimiter)
    return _as_double(bits), final, at


@nb.njit(nogil=True, inline="always")
def _plain_float(text: Any, start: Any, n: Any, delimiter: Any, single: Any) -> Any:
    """As `_any_float` for a plain number; what is not is not final."""
    if start + PLAIN_NBYTES < n:
        bits, good, at = _plain(text, start)
        stop = _byte(text, at)
        good &= (stop == delimiter) | (stop == 10) | (stop == 13)
        if single:
            good &= _fits_float(bits)
        return _as_double(bits), good, at
    return 0.0, False, start


@nb.njit(nogil=True, inline="always")
def _next_line(text: Any, at: Any, n: Any) -> Any:
    """Where the next line starts if a line ends at `at`, else -1."""
    if at < n and _byte(text, at) == 13:
        at += 1
        if at == n:
            return -1
    return at + 1 if at == n or _byte(text, at) == 10 else -1


def _lines(text: Any, delimiter: Any, plan: Any, words: Any, out: Any, slow: Any) -> Any:
    """Parse every line; returns rows and listed cells, or -1 where the lines are not for this kernel."""
    matrix, floats, integers = out
    single = matrix.itemsize == 4
    n, at, row, nslow, columns = len(text), 0, 0, 0, plan.shape[1]
    while at < n:
        if _byte(text, at) == 10 or (_byte(text, at) == 13 and at + 1 < n and _byte(text, at + 1) == 10):
            at += 1 if _byte(text, at) == 10 else 2
            continue
        for column in range(columns):
            kind, slot, start = plan[0, column], plan[1, column], at
            if kind == 1 or kind == 2:
                value, final, at = _plain_float(text, start, n, delimiter, single and kind == 1)
                if not final:
                    value, final, at = _any_float(text, start, n, delimiter, single and kind == 1)
                if not final:
                    value = np.nan
                    if not _is_null(text, start, at, words[0], words[1]):
                        if nslow == len(slow):
                            return -1, 0
                        slow[nslow, 0], slow[nslow, 1], slow[nslow, 2], slow[nslow, 3] = row, column, start, at
                        nslow += 1
                if kind == 1:
                    matrix[row, slot] = value
                else:
                    floats[slot, row] = value
            else:
                at = _cell_end(text, at, n, delimiter)
                if kind == 3:
                    integers[slot, row], good = _integer(text, start, at)
                    if not good:
                        return -1, 0
            if column + 1 < columns:
                if at == n or _byte(text, at) != delimiter:
                    return -1, 0
                at += 1
        at = _next_line(text, at, n)
        if at < 0:
            return -1, 0
        row += 1
    return row, nslow


def _count(text: Any) -> Any:
    """Newlines in a text."""
    found = 0
    for byte in text:
        found += byte == 10
    return found


def compiled(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The counter of lines and the kernel for a matrix of this dtype, from Numba's cache where they can be."""
    text = types.Array(types.uint8, 1, "C", readonly=True)
    number = types.float32 if dtype.itemsize == 4 else types.float64
    signature = types.UniTuple(types.int64, 2)(
        text,
        types.int64,
        types.int64[:, ::1],
        types.Tuple((text, types.int64[::1])),
        types.Tuple((number[:, ::1], types.float64[:, ::1], types.int64[:, ::1])),
        types.int64[:, ::1],
    )
    return _made(_count, types.int64(text)), _made(_lines, signature)


def _made(function: Compiled, signature: Any) -> Any:
    try:
        return nb.njit([signature], nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can hold a cache
        return nb.njit([signature], nogil=True)(function)

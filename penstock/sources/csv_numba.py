"""The compiled code of the CSV kernel. Importing this imports Numba, so only csv_kernel.py does, and late.

Covers: the walk over lines and cells.
Does not cover: numbers from digits (csv_cells.py, csv_number.py), when to use it and what it cannot settle
(csv_kernel.py).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from penstock.sources.csv_cells import BEFORE, STRIDE, WIDTH, _ends, _set_bits, _short
from penstock.sources.csv_number import (
    PLAIN_NBYTES,
    POWERS,
    Compiled,
    _as_bits,
    _as_double,
    _byte,
    _digits,
    _fits_float,
    _number,
    _plain,
    _trailing_zeros,
    types,
)

CELLS = 2048
"""Ends of cells that are looked up at a time: with their text they stay in the fastest cache."""


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


@nb.njit(nogil=True, inline="always", error_model="numpy")
def _short_float(text: Any, start: Any, end: Any, table: Any, single: Any) -> Any:
    """The number in a cell and whether it is final, which it is only for a short plain one."""
    if (np.uint64(end - start - 1) >= np.uint64(WIDTH - 1)) | (end < BEFORE):
        return 0.0, False
    value, scale, good = _short(text, start, end, table)
    number = np.float64(value) / scale  # both exact, so this rounds once (Clinger)
    if single:  # it is never beyond float32, but it may lie between two of them and have been rounded to do so
        good &= (_as_bits(number) & np.uint64(0x1FFFFFFF)) != np.uint64(0x10000000)
    return number, good


@nb.njit(nogil=True, inline="always", error_model="numpy")
def _short_floats(text: Any, start: Any, ends: Any, delimiter: Any, table: Any, out: Any) -> Any:
    """Short plain numbers with a delimiter behind each, for as long as they are ones; returns how many.

    A loop of its own, with little in it: what `_lines` has to keep at hand would be fetched from memory for each cell.
    """
    for k in range(len(out)):
        end = ends[k]
        value, final = _short_float(text, start, end, table, out.itemsize == 4)
        if not final or _byte(text, end) != delimiter:
            return k
        out[k] = value
        start = end + 1
    return len(out)


@nb.njit(nogil=True)
def _long_float(text: Any, start: Any, delimiter: Any, single: Any) -> Any:
    """As `_short_float` for a number of any length or shape."""
    value, final, _ = _plain_float(text, start, len(text), delimiter, single)
    if not final:
        value, final, _ = _any_float(text, start, len(text), delimiter, single)
    return value, final


@nb.njit(nogil=True)
def _find_ends(text: Any, at: Any, delimiter: Any, ends: Any) -> Any:
    """List the ends of cells from `at` on, the text's own among them, while there is room; returns how many."""
    n: Any = len(text)
    found: Any = 0
    while at + STRIDE <= n:
        if found + 2 * STRIDE > len(ends):
            return found
        bits = _ends(text, at, delimiter)
        count, done = np.int64(_set_bits(bits)), 0
        while done < count:  # eight at once, needed or not: how many are is guessed wrong too often
            for k in range(8):
                ends[np.uint64(found + done + k)] = at + np.int64(_trailing_zeros(bits))
                bits &= bits - np.uint64(1)
            done += 8
        found += count
        at += STRIDE
    while at < n:
        if _byte(text, at) == delimiter or _byte(text, at) == 10 or _byte(text, at) == 13:
            ends[found] = at
            found += 1
        at += 1
    if _byte(text, n - 1) != 10:
        ends[found] = n
        found += 1
    return found


@nb.njit(nogil=True, inline="always")
def _line_end(text: Any, at: Any, n: Any) -> Any:
    """How many of the listed ends a line's end at `at` is: 1, 2 for carriage return and newline, 0 if it is none."""
    if at == n or _byte(text, at) == 10:
        return 1
    return 2 if _byte(text, at) == 13 and at + 1 < n and _byte(text, at + 1) == 10 else 0


def _lines(text: Any, delimiter: Any, plan: Any, words: Any, out: Any, slow: Any, table: Any) -> Any:
    """Parse every line; returns rows and listed cells, or -1 where the lines are not for this kernel."""
    matrix, floats, integers = out
    single = matrix.itemsize == 4
    n, at, row, nslow, columns = len(text), 0, 0, 0, plan.shape[1]
    cell, found = 0, 0
    ends = np.empty(max(CELLS, 4 * columns) + 3 * STRIDE, np.int64)
    while at < n:
        if cell + columns > found:
            cell, found = 0, _find_ends(text, at, delimiter, ends)
        if ends[cell] == at and _line_end(text, at, n) > 0:  # an empty line
            cell += _line_end(text, at, n)
            at += _line_end(text, at, n)
            continue
        if cell + columns > found:
            return -1, 0
        column = 0
        while column < columns:
            kind, slot, run, start = plan[0, column], plan[1, column], plan[2, column], at
            if run > 0:
                done = _short_floats(text, at, ends[cell + column :], delimiter, table, matrix[row, slot : slot + run])
                if done > 0:
                    at = ends[cell + column + done - 1] + 1
                    column += done
                    continue
            at = ends[cell + column]
            if kind == 1 or kind == 2:
                value, final = _short_float(text, start, at, table, single and kind == 1)
                if not final:
                    value, final = _long_float(text, start, delimiter, single and kind == 1)
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
            elif kind == 3:
                integers[slot, row], good = _integer(text, start, at)
                if not good:
                    return -1, 0
            column += 1
            if column < columns:
                if _byte(text, at) != delimiter:
                    return -1, 0
                at += 1
        passed = _line_end(text, at, n)
        if passed == 0:
            return -1, 0
        cell += columns - 1 + passed
        at += passed
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
        types.uint8,
        types.int64[:, ::1],
        types.Tuple((text, types.int64[::1])),
        types.Tuple((number[:, ::1], types.float64[:, ::1], types.int64[:, ::1])),
        types.int64[:, ::1],
        text,
    )
    return _made(_count, types.int64(text)), _made(_lines, signature)


def _made(function: Compiled, signature: Any) -> Any:
    try:
        return nb.njit([signature], nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can hold a cache
        return nb.njit([signature], nogil=True, error_model="numpy")(function)

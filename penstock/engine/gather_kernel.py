"""Compiled: rows of several blocks, in any order, copied one after the other.

Covers: which block a row of a window lies in, and the copy of one column's rows.
Does not cover: when it is used (engine/gather.py). Importing this imports Numba.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.core.raw_memory import Number, copy_bytes, load_u64, prefetch, store_i64

_AHEAD, _LINES = 8, 8
"""Rows asked for ahead of the copy, and cache lines of each: a row lies anywhere in the window, so it is not cached."""


@numba.njit("void(int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def locate(order: np.ndarray, ends: np.ndarray, which: np.ndarray, rows: np.ndarray) -> None:
    """The block of each row of the window, and its row there. `ends` are the blocks' ends, rising."""
    for at in range(len(order)):
        row = order[at]
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) >> 1
            if row < ends[middle]:
                high = middle
            else:
                low = middle + 1
        which[at] = low
        rows[at] = row - (ends[low - 1] if low > 0 else 0)


@numba.njit("void(int64[::1], int64[::1], int64[::1], int64, int64)", nogil=True, cache=True)
def copy_rows(bases: np.ndarray, which: np.ndarray, rows: np.ndarray, nbytes: Number, target: Number) -> None:
    """Row by row from the blocks, whose first rows lie at the addresses `bases`, to the address `target`."""
    if nbytes == 8:
        for at in range(len(rows)):
            store_i64(target + 8 * at, np.int64(load_u64(bases[which[at]] + 8 * rows[at])))
        return
    soon = len(rows) - _AHEAD
    lines = min(nbytes, _LINES * 64)
    for at in range(len(rows)):
        if at < soon:
            next_row = bases[which[at + _AHEAD]] + nbytes * rows[at + _AHEAD]
            for line in range(0, lines, 64):
                prefetch(next_row + line)
        copy_bytes(target + nbytes * at, bases[which[at]] + nbytes * rows[at], nbytes)

"""Rows of several blocks, in any order, copied one after the other.

Covers: which block a row of a window lies in, the copy of one column's rows (native/gather.c).
Does not cover: when it is used (engine/buffers/gather.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.native.library import ADDRESS, INT64, Kernel, address

_locate = Kernel("gather_locate", INT64, ADDRESS, INT64, ADDRESS, INT64, ADDRESS, ADDRESS)
_copy = Kernel("gather_copy", None, ADDRESS, ADDRESS, ADDRESS, INT64, INT64, ADDRESS)


def locate(order: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The block of each row of the window, and its row there. `ends` are the blocks' ends, rising."""
    order, ends = np.ascontiguousarray(order, np.int64), np.ascontiguousarray(ends, np.int64)
    which, rows = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    found = _locate(address(order), len(order), address(ends), len(ends), address(which), address(rows))
    if found != len(order):
        end = int(ends[-1]) if len(ends) else 0
        raise IndexError(f"row {int(order[found])} is outside of the window's {end} rows")
    return which, rows


def copy_rows(columns: Sequence[np.ndarray], which: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Row `rows[i]` of `columns[which[i]]` to row i of `out`: C-contiguous arrays with rows of one dtype and shape.

    `which` and `rows` are what `locate` returned.
    """
    if not len(rows):
        return
    bases = np.array([address(column) for column in columns], np.int64)
    nbytes = out.nbytes // len(out)
    _copy(address(bases), address(which), address(rows), len(rows), nbytes, address(out))

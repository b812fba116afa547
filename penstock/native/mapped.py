"""Rows of a mapped file, copied so that a file which is cut short meanwhile is an error and no signal.

Covers: the copy (native/mapped.c).
Does not cover: mapping files (sources/arrays/npy.py).
"""

from __future__ import annotations

import numpy as np

from penstock.native.library import ADDRESS, INT64, Kernel, address

_take = Kernel("mapped_take", INT64, ADDRESS, INT64, ADDRESS, INT64, INT64, ADDRESS)


def take_rows(mapped: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """The rows of a mapped array (contiguous, in either order), copied; None if the file has lost some of them."""
    rows = np.ascontiguousarray(rows, np.int64)
    out = np.empty((len(rows), *mapped.shape[1:]), mapped.dtype)
    if not out.nbytes:
        return out
    if mapped.flags.c_contiguous:
        return out if _taken(mapped, rows, out) else None
    columns = mapped.T  # contiguous: the last axis is the rows
    if not columns.flags.c_contiguous:
        raise ValueError("the mapped array is not contiguous")
    side = np.empty((*columns.shape[:-1], len(rows)), mapped.dtype)
    for place in np.ndindex(*columns.shape[:-1]):
        if not _taken(columns[place], rows, side[place]):
            return None
    out[...] = side.T
    return out


def _taken(mapped: np.ndarray, rows: np.ndarray, out: np.ndarray) -> bool:
    nbytes = out.nbytes // len(out)
    done = int(_take(address(mapped), len(mapped), address(rows), len(rows), nbytes, address(out)))
    if done < 0:
        raise IndexError(f"rows {rows.min()} to {rows.max()} of an array of {len(mapped)} rows")
    return done == 1

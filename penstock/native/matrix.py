"""Columns in memory, side by side as the rows of a matrix.

Covers: float32 from floats and integers, eight-byte numbers as they are (native/matrix.c).
Does not cover: missing values and other types (sources/tables/).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

FROM_F32, FROM_F64, FROM_I32, FROM_I64 = range(4)
"""What a column for `to_f32` may hold."""

_to_f32 = Kernel("matrix_to_f32", INT32, ADDRESS, ADDRESS, INT64, INT64, ADDRESS, INT64)
_copy_u64 = Kernel("matrix_copy_u64", INT32, ADDRESS, INT64, INT64, ADDRESS, INT64)


def to_f32(addresses: Sequence[int], kinds: Sequence[int], out: np.ndarray, first: int = 0) -> None:
    """Columns at the addresses, of the given kinds, to columns first, first + 1, ... of a C-contiguous float32 matrix.

    Each column has as many numbers as `out` has rows, and is kept by the caller.
    """
    places, sorts = np.array(addresses, np.int64), np.array(kinds, np.uint8)
    target = _column(out, first, len(places), 4)
    if not _to_f32(address(places), address(sorts), len(places), len(out), target, out.strides[0]):
        raise InvalidInput(f"kinds must be 0 to 3 and fit {out.shape[1]} columns, not {list(kinds)}.")


def copy_u64(addresses: Sequence[int], out: np.ndarray, first: int = 0) -> None:
    """As `to_f32`, for eight-byte numbers that are copied as they are."""
    places = np.array(addresses, np.int64)
    _copy_u64(address(places), len(places), len(out), _column(out, first, len(places), 8), out.strides[0])


def _column(out: np.ndarray, first: int, count: int, itemsize: int) -> int:
    fits = out.ndim == 2 and out.flags.c_contiguous and out.itemsize == itemsize
    if not fits or first < 0 or first + count > out.shape[1]:
        raise InvalidInput(f"{count} columns from {first} on do not fit a matrix of {out.dtype} {out.shape}.")
    return address(out) + first * itemsize

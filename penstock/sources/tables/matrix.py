"""Columns of a table side by side, as one row-major matrix.

Covers: Arrow columns of any numbers to one NumPy matrix: float32, float64 and int64 by our kernel, others by Arrow.
Does not cover: which columns (blocks.py), the kernel (native/matrix.py).

Arrow's own `to_tensor` needs 9 ms for 49,152 rows of 40 float32 columns, the kernel 1 ms (both measured); it also takes
float64 and integer columns as they are, where Arrow needs a cast copy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import numbers
from penstock.core.errors import InvalidInput
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.native import matrix as kernel

_LAID = (np.float32, np.float64, np.int64)

_COPIED = {
    pa.float32(): kernel.FROM_F32,
    pa.float64(): kernel.FROM_F64,
    pa.int32(): kernel.FROM_I32,
    pa.int64(): kernel.FROM_I64,
}
"""What the kernel turns into float32 itself, by its number there."""


def side_by_side(arrays: Sequence[pa.Array], dtype: np.dtype[Any], buffers: Buffers = NEW_MEMORY) -> np.ndarray:
    """A matrix of `dtype` with a column for each array; missing values become NaN."""
    nrows = len(arrays[0])
    if nrows == 0:
        return np.empty((0, len(arrays)), dtype)
    kind = pa.from_numpy_dtype(dtype)
    if pt.is_boolean(kind):  # Arrow packs booleans in bits and has no tensor of them
        return np.column_stack([numbers(array) for array in arrays])
    missing = dtype.kind != "f" and any(array.null_count for array in arrays)  # integers: Arrow says so
    if missing or not is_laid(dtype):
        return _by_arrow(arrays, kind, dtype)
    out = buffers.empty((nrows, len(arrays)), dtype)
    lay(arrays, out, 0)
    return out


def is_laid(dtype: np.dtype[Any]) -> bool:
    """Whether `lay` is for matrices of this dtype."""
    return dtype in _LAID


def lay(arrays: Sequence[pa.Array], out: np.ndarray, first: int) -> None:
    """Write the arrays to columns first, first + 1, ... of a C-contiguous matrix; missing floats become NaN."""
    kind = pa.from_numpy_dtype(out.dtype)
    ready = [_ready(array, kind) for array in arrays]
    if any(len(array) != len(out) for array in ready):
        raise InvalidInput(f"Columns of {[len(array) for array in ready][:9]} rows do not fit a matrix of {len(out)}.")
    addresses = [_address(array) for array in ready]
    if out.dtype == np.float32:
        kernel.to_f32(addresses, [_COPIED[array.type] for array in ready], out, first)
    else:
        kernel.copy_u64(addresses, out, first)


def _ready(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in a type that the kernel takes, missing floats as NaN."""
    takes = (array.type in _COPIED) if pt.is_float32(kind) else (array.type == kind)
    if takes and not array.null_count:
        return array
    array = array if array.type == kind else _cast(array, kind)
    if array.null_count and pt.is_floating(kind):
        array = pc.fill_null(array, pa.scalar(float("nan"), kind))
    return array


def _address(array: pa.Array) -> int:
    """Where the first value lies; the caller keeps the array."""
    buffer = array.buffers()[1]
    return int(buffer.address + array.offset * (array.type.bit_width // 8))


def _by_arrow(arrays: Sequence[pa.Array], kind: pa.DataType, dtype: np.dtype[Any]) -> np.ndarray:
    same = [a if a.type == kind else _cast(a, kind) for a in arrays]
    batch = pa.RecordBatch.from_arrays(same, names=[str(i) for i in range(len(same))])
    return np.asarray(batch.to_tensor(null_to_nan=dtype.kind == "f", row_major=True).to_numpy())


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow casts a boolean to every number but half floats.
    if pt.is_boolean(array.type):
        array = pc.cast(array, pa.uint8())
    return pc.cast(array, kind, safe=False)

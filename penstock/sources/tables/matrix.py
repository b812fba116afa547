"""Columns of a table side by side, as one row-major matrix.

Covers: Arrow columns of any numbers to one NumPy matrix, compiled, by NumPy or by Arrow, with the same bits.
Does not cover: which columns (sources/table.py), the compiled code (sources/matrix_kernel.py).

Arrow's own `to_tensor` needs 9 ms for 49,152 rows of 40 float32 columns, the compiled loop 1 ms (both measured); it
also takes float64 and integer columns as they are, where Arrow needs a cast copy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import numbers
from penstock.memory.buffers import empty
from penstock.memory.limits import current_limit
from penstock.sources.compile_background import Kernel

ROOMY_NBYTES = 1_000_000_000
"""A limit below which Arrow lays columns side by side: the compiler's own memory would be missed."""

LAID_CELLS = 1 << 16
"""Matrices below this are left to Arrow: they are not worth loading a compiler for."""

_LAID = (np.float32, np.float64, np.int64)


class MatrixKernel(Kernel):
    """The compiled loop of this process, one for all dtypes."""

    def make(self, dtype: np.dtype[Any]) -> Any:
        from penstock.sources import matrix_kernel

        return matrix_kernel


kernel = MatrixKernel()

_COPIED = {pa.float32(): 0, pa.float64(): 1, pa.int32(): 2, pa.int64(): 3}
"""What the loop turns into float32 itself, by its number there."""


def side_by_side(arrays: Sequence[pa.Array], dtype: np.dtype[Any], wait: bool = False) -> np.ndarray:
    """A matrix of `dtype` with a column for each array; missing values become NaN."""
    nrows = len(arrays[0])
    if nrows == 0:
        return np.empty((0, len(arrays)), dtype)
    kind = pa.from_numpy_dtype(dtype)
    if pt.is_boolean(kind):  # Arrow packs booleans in bits and has no tensor of them
        return np.column_stack([numbers(array) for array in arrays])
    missing = dtype.kind != "f" and any(array.null_count for array in arrays)  # integers: Arrow says so
    if missing or not is_laid(dtype, nrows * len(arrays)):
        return _by_arrow(arrays, kind, dtype)
    out = empty((nrows, len(arrays)), dtype)
    lay(arrays, out, 0, wait)
    return out


def is_laid(dtype: np.dtype[Any], cells: int) -> bool:
    """Whether `lay` is for a matrix of so many cells."""
    return dtype in _LAID and cells >= LAID_CELLS


def lay(arrays: Sequence[pa.Array], out: np.ndarray, first: int, wait: bool = False) -> None:
    """Write the arrays to columns first, first + 1, ... of a C-contiguous matrix; missing floats become NaN."""
    kind = pa.from_numpy_dtype(out.dtype)
    ready = [_ready(array, kind) for array in arrays]
    found = _compiled(wait)
    if found is None:
        for column, array in enumerate(ready, first):
            out[:, column] = numbers(array)
        return
    nrows, width = out.shape
    addresses = np.array([_address(array) for array in ready], np.int64)
    target = out.ctypes.data + first * out.itemsize
    if out.dtype == np.float32:
        kinds = np.array([_COPIED[array.type] for array in ready], np.int64)
        found.to_f32(addresses, kinds, (nrows, width), target)
    else:
        found.copy_u64(addresses, (nrows, width), target)


def _compiled(wait: bool) -> Any:
    found = kernel.loaded(np.float32)
    if found is not None or (not wait and current_limit().nbytes < ROOMY_NBYTES):
        return found
    return kernel.get(np.float32, wait)


def _ready(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in a type that the loop takes, missing floats as NaN."""
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

"""Numbers of an Arrow array as NumPy sees them, without PyArrow's own conversion.

Covers: integers, floats, booleans, dates, times and durations; anything else goes to PyArrow.
Does not cover: which columns are kept as Arrow arrays (sources/column.py).

`Array.to_numpy` imports pandas where it is installed: 0.4 s before the first batch and 30 MB (both measured).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def numbers(array: pa.Array) -> np.ndarray:
    """As `array.to_numpy(zero_copy_only=False)`: read-only where it is Arrow's memory, missing floats are NaN."""
    kind = array.type
    if pt.is_floating(kind) and array.null_count:
        array = pc.fill_null(array, pa.scalar(float("nan"), kind))
    stored = _stored_dtype(kind)
    if stored is None or array.null_count:
        found: np.ndarray = array.to_numpy(zero_copy_only=False)
        return found
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, _shown_dtype(kind, stored))
    if pt.is_boolean(kind):
        bits = np.frombuffer(buffer, np.uint8, -(-(array.offset + len(array)) // 8))
        return np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)].view(np.bool_)
    values = np.frombuffer(buffer, stored, len(array), array.offset * stored.itemsize)
    values.flags.writeable = False
    return values.astype(_shown_dtype(kind, stored), copy=False)


def _stored_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """What lies in the buffer; None for types that are left to PyArrow."""
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        plain: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return plain
    if pt.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if pt.is_duration(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    if pt.is_date64(kind):
        return np.dtype("datetime64[ms]")
    return np.dtype(np.int32) if pt.is_date32(kind) else None


def _shown_dtype(kind: pa.DataType, stored: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("datetime64[D]") if pt.is_date32(kind) else stored

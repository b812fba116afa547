"""Arrow arrays to NumPy and back, without PyArrow's own conversion.

Covers: integers, floats, booleans, dates, times, durations, text and bytes to NumPy, anything else goes to PyArrow;
numbers to Arrow; tables without rows.
Does not cover: which columns are kept as Arrow arrays (sources/tables/column.py).

`Array.to_numpy`, `pa.array`, `pa.scalar` and `Schema.empty_table` import pandas where it is installed: 0.4 s before the
first batch and 30 MB (both measured).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt


def numbers(array: pa.Array) -> np.ndarray:
    """As `array.to_numpy(zero_copy_only=False)`: read-only where it is Arrow's memory, missing floats are NaN."""
    kind = array.type
    if pt.is_floating(kind) and array.null_count:
        return _with_nan(array)
    if any(is_text(kind) for is_text in (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary)):
        return _objects(array)
    stored = _stored_dtype(kind)
    if stored is None or array.null_count:
        found: np.ndarray = array.to_numpy(zero_copy_only=False)
        return found
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, _shown_dtype(kind, stored))
    if pt.is_boolean(kind):
        return _bits(buffer, array.offset, len(array))
    values = np.frombuffer(buffer, stored, len(array), array.offset * stored.itemsize)
    values.flags.writeable = False
    return values.astype(_shown_dtype(kind, stored), copy=False)


def arrow_of(array: np.ndarray) -> pa.Array:
    """Numbers as an Arrow array that looks at them; the array is kept for as long."""
    whole = np.ascontiguousarray(array)
    return pa.Array.from_buffers(pa.from_numpy_dtype(whole.dtype), len(whole), [None, pa.py_buffer(whole)])


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_batches([], schema)


def _with_nan(array: pa.Array) -> np.ndarray:
    valid, buffer = array.buffers()
    kind: np.dtype[Any] = np.dtype(array.type.to_pandas_dtype())
    values = np.frombuffer(buffer, kind, len(array), array.offset * kind.itemsize)
    return np.where(_bits(valid, array.offset, len(array)), values, kind.type("nan"))


def _bits(buffer: pa.Buffer, first: int, count: int) -> np.ndarray:
    stored = np.frombuffer(buffer, np.uint8, -(-(first + count) // 8))
    return np.unpackbits(stored, bitorder="little")[first : first + count].view(np.bool_)


def _objects(array: pa.Array) -> np.ndarray:
    out = np.empty(len(array), object)
    out[:] = array.to_pylist()
    return out


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

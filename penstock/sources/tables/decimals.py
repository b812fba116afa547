"""Decimals to the nearest floats, which Arrow's own cast misses by a bit.

Covers: columns of decimals of any width.
Does not cover: whole decimals that are read as integers (column.py).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import arrow_of

_EXACT, _EXACT_POWER = 2**53, 22
"""Whole numbers and powers of ten that a float holds: dividing one by the other rounds once."""


def nearest_floats(array: pa.Array) -> pa.Array:
    """A column of decimals as float64: 1003.858 as Python reads it, and not as 1003.8580000000001."""
    whole = _small_whole(array)
    if whole is None or not 0 <= array.type.scale <= _EXACT_POWER:
        return pc.cast(pc.cast(array, pa.string()), pa.float64())
    floats = arrow_of(whole / 10.0**array.type.scale)
    if not array.null_count:
        return floats
    return pa.Array.from_buffers(pa.float64(), len(array), [array.is_valid().buffers()[1], floats.buffers()[1]])


def _small_whole(array: pa.Array) -> np.ndarray | None:
    """The decimals without their points, if all of them are exact as floats; missing ones are anything."""
    if not pt.is_decimal128(array.type) or array.buffers()[1] is None:
        return None
    words = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    small = (high == low >> 63) & (low <= _EXACT) & (low >= -_EXACT)
    if array.null_count:
        small |= array.is_null().to_numpy(zero_copy_only=False)
    return low if bool(small.all()) else None

"""One Arrow column as penstock holds it: NumPy where NumPy is good at it.

Covers: the plain type of an Arrow type, its field, and the conversion of arrays.
Does not cover: which columns a sample shows (blocks.py).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import numbers
from penstock.core.block import Column
from penstock.core.schema import OBJECT, Field
from penstock.sources.tables.decimals import nearest_floats
from penstock.sources.tables.nested import is_list, with_leaves

_INT64_DIGITS = 18
"""Decimal digits that every int64 has room for."""

_UNIT = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}


_PLAIN_IDS = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    )
)
"""Types that are plain as they are: a table has many columns, and asking for each of the others takes a while."""


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a column of a matrix."""
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column has once dictionaries, views, decimals and times are resolved."""
    if kind.id in _PLAIN_IDS:
        return kind
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return plain_type(kind.storage_type)
    if pt.is_decimal(kind) or pt.is_null(kind):
        return pa.int64() if is_whole_decimal(kind) and kind.precision <= _INT64_DIGITS else pa.float64()
    if pt.is_time(kind):
        return pa.duration(kind.unit)
    if pt.is_list(kind) and pt.is_time(kind.value_type):
        return pa.list_(pa.duration(kind.value_type.unit))
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def plain_column(array: pa.Array, fill: Any = None) -> pa.Array:
    """The column in its plain type, missing values replaced if `fill` is given."""
    if fill is None and array.type.id in _PLAIN_IDS:
        return array
    if isinstance(array, pa.ExtensionArray) and not isinstance(array.type, pa.FixedShapeTensorType):
        array = array.storage
    if pt.is_dictionary(array.type):
        return plain_column(array.dictionary_decode(), fill)
    kind = plain_type(array.type)
    if kind != array.type:
        if pt.is_time(array.type):
            array = pc.cast(pc.cast(array, pa.int32() if pt.is_time32(array.type) else pa.int64()), pa.int64())
        elif pt.is_list(array.type) and pt.is_time(array.type.value_type):
            return with_leaves(array, plain_column)
        if pt.is_decimal(array.type) and pt.is_float64(kind):
            array = nearest_floats(array)
        array = pc.cast(array, kind, safe=False)  # nothing to do where it has the type already
    if fill is not None and is_list(kind):
        return with_leaves(array, lambda leaf: _filled(leaf, fill))
    if fill is not None and array.null_count and not pt.is_nested(kind):
        array = _filled(array, fill)
    return array


def _filled(array: pa.Array, fill: Any) -> pa.Array:
    try:
        return pc.fill_null(array, pa.scalar(fill, type=array.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return array  # one fill for all columns: a number does not fit text, so text stays missing


def plain_field(name: str, kind: pa.DataType, null_is_nan: bool) -> Field:
    """What a row of a plain column is."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return Field(name, np.dtype(kind.value_type.to_pandas_dtype()), tuple(kind.shape))
    if pt.is_fixed_size_list(kind) and pt.is_primitive(kind.value_type) and not pt.is_boolean(kind.value_type):
        return Field(name, _dtype(kind.value_type), (kind.list_size,))
    depth = 0
    while pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    shape: tuple[int | None, ...] = (None,) * depth
    text = pt.is_string(kind) or pt.is_large_string(kind)
    if text or not pt.is_primitive(kind):
        return Field(name, OBJECT, shape, text=text)
    if null_is_nan and (pt.is_integer(kind) or pt.is_boolean(kind)):
        return Field(name, np.dtype(np.float64), shape)
    return Field(name, _dtype(kind), shape)


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    if pt.is_date32(kind):
        return np.dtype("datetime64[D]")
    if pt.is_date64(kind):
        return np.dtype("datetime64[ms]")
    if pt.is_timestamp(kind):
        return np.dtype(f"datetime64[{_UNIT[kind.unit]}]")
    if pt.is_duration(kind):
        return np.dtype(f"timedelta64[{_UNIT[kind.unit]}]")
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def to_column(array: pa.Array, null_is_nan: bool) -> Column:
    """A plain column as a block holds it."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.asarray(array.to_numpy_ndarray())
    if pt.is_fixed_size_list(kind) and pt.is_primitive(kind.value_type) and not pt.is_boolean(kind.value_type):
        return _fixed_list(array)
    if not pt.is_primitive(kind):
        return array
    if (pt.is_integer(kind) or pt.is_boolean(kind)) and (null_is_nan or array.null_count):
        array = pc.cast(pc.cast(array, pa.uint8()) if pt.is_boolean(kind) else array, pa.float64(), safe=False)
    return np.asarray(numbers(array), dtype=_dtype(array.type))


def is_whole_decimal(kind: pa.DataType) -> bool:
    """Whether a type holds whole numbers in decimal form."""
    return bool(pt.is_decimal(kind) and kind.scale <= 0)


EXACT = 2**53
"""Integers up to this size are float64 as they are."""


def loses_digits(value: int) -> bool:
    """Whether neither the nearest float nor its shortest decimal form is the number: 2^53 + 1 does, 10^23 does not."""
    try:
        near = float(value)
    except OverflowError:  # no float is as large
        return True
    return int(near) != value and Decimal(repr(near)) != value


def beyond_float64(array: pa.Array) -> np.ndarray | None:
    """Which whole numbers float64 would round; None if there is none."""
    wide = is_whole_decimal(array.type) or (pt.is_integer(array.type) and array.type.bit_width == 64)
    if not wide or not len(array) or array.null_count == len(array):
        return None
    ends = pc.min_max(array)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low >= -EXACT and high <= EXACT:
        return None
    above = pc.greater(array, pa.scalar(EXACT, array.type))
    below = pc.less(array, pa.scalar(-EXACT, array.type)) if not pt.is_unsigned_integer(array.type) else above
    return numbers(pc.fill_null(pc.or_(above, below), False))


def not_text(array: pa.Array) -> np.ndarray | None:
    """Which rows hold text that is not UTF-8; None if there is none."""
    kind = array.type
    if not (pt.is_string(kind) or pt.is_large_string(kind) or pt.is_nested(kind)):
        return None
    try:
        array.validate(full=True)
        return None
    except pa.ArrowInvalid:
        return np.array([not _is_valid(array.slice(row, 1)) for row in range(len(array))], np.bool_)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.take(pa.array([0])).validate(full=True)  # a copy: a slice is validated with its neighbours
    except pa.ArrowInvalid:
        return False
    return True


def _fixed_list(array: pa.Array) -> Column:
    """Lists of one length as a matrix; a missing list is a row of NaN, or the lists stay Arrow if they are integers."""
    length = array.type.list_size
    # `values` shows the parent's whole buffer: the slice's own rows are cut out by hand.
    values = array.values.slice(array.offset * length, len(array) * length)
    floating = pt.is_floating(values.type)
    if (array.null_count or values.null_count) and not floating:
        return array
    matrix = numbers(values).reshape(len(array), length)
    if array.null_count:
        matrix = matrix.copy()
        matrix[numbers(pc.is_null(array))] = np.nan
    return np.asarray(matrix)

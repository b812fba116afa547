"""Values inside of lists and structs: what the rules for plain columns mean there.

Covers: changing the innermost values of lists, integers that are missing inside of lists, dates without a Python form.
Does not cover: plain columns (column.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.arrow_numbers import numbers


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of one length or of many."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def with_leaves(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Lists (of lists) whose innermost values are changed; a list that is missing stays so."""
    if not is_list(array.type):
        return change(array)
    mask = pc.is_null(array) if array.null_count else None
    if pt.is_fixed_size_list(array.type):
        length = array.type.list_size
        values = with_leaves(array.values.slice(array.offset * length, len(array) * length), change)
        return pa.FixedSizeListArray.from_arrays(values, length, mask=mask)
    offsets = pa.array(np.array(array.offsets))  # a copy: a slice of offsets cannot carry a mask
    kind = pa.LargeListArray if pt.is_large_list(array.type) else pa.ListArray
    return kind.from_arrays(offsets, with_leaves(array.values, change), mask=mask)


def missing_inside(array: pa.Array) -> np.ndarray | None:
    """Which lists hold a missing integer or boolean, for which NumPy has no value; None if none does."""
    if not is_list(array.type):
        return None
    row, rows = np.arange(len(array)), len(array)
    while is_list(array.type):
        row = row[numbers(pc.list_parent_indices(array))]
        array = pc.list_flatten(array)
    if not array.null_count or not (pt.is_integer(array.type) or pt.is_boolean(array.type)):
        return None
    bad = np.zeros(rows, np.bool_)
    bad[row[numbers(pc.is_null(array))]] = True
    return bad


def without_python_form(array: pa.Array) -> np.ndarray | None:
    """Which rows hold, inside of structs or maps, a date that Python has not (years 1 to 9999); None if none."""
    if not _may_be_far(array):
        return None
    bad = np.zeros(len(array), np.bool_)
    for row in range(len(array)):
        try:
            array[row].as_py()
        except (ValueError, OverflowError):
            bad[row] = True
    return bad


_DAY_ONE, _LAST_DAY = np.datetime64("0001-01-02"), np.datetime64("9999-12-30")


def _may_be_far(array: pa.Array, inside: bool = False) -> bool:
    """Whether a date within structs is near the end of Python's calendar or beyond."""
    kind = array.type
    if pt.is_map(kind):
        return _may_be_far(array.keys, True) or _may_be_far(array.items, True)
    if pt.is_struct(kind):
        return any(_may_be_far(array.field(i), True) for i in range(kind.num_fields))
    if is_list(kind):
        return _may_be_far(array.values, inside)
    if not inside or not (pt.is_date(kind) or pt.is_timestamp(kind)) or array.null_count == len(array):
        return False
    days = numbers(array.drop_null()).astype("datetime64[D]")
    return bool(days.min() < _DAY_ONE or days.max() > _LAST_DAY)

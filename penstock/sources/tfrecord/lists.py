"""Columns of features that were only located: bytes, text, raw arrays, lists and the steps of sequences.

Covers: from spans in a buffer to Arrow and NumPy columns, and which rows could not be read.
Does not cover: locating the features (native/example/read.py), images (columns.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_numbers import arrow_of
from penstock.core.block import Column
from penstock.core.schema import OBJECT
from penstock.native.example import lists as kernel
from penstock.sources.tfrecord.features import BYTES, FLOAT, Feature

Damage = Callable[[int, str], None]
"""Called with a row and the reason why it cannot be read."""


def list_column(buf: np.ndarray, spans: np.ndarray, feature: Feature, damage: Damage) -> Column:
    """The column of a feature of any kind that is not fixed. Damaged rows hold an empty value."""
    if feature.listed:
        return _steps(buf, spans, feature, damage)
    if (feature.kind == BYTES and feature.shape == ()) or feature.raw:
        return _single(buf, spans, feature, damage)
    offsets = _offsets(_counts(buf, spans, feature, damage))
    values = _values(buf, spans, offsets, feature, damage)
    if len(feature.shape) > 1:  # a list of arrays: (None, 3) is a list of triples
        width = feature.count
        values = _lists(np.arange(0, len(values) + 1, width), values)
        offsets = offsets // width
    return _lists(offsets, values)


def single_places(buf: np.ndarray, spans: np.ndarray, feature: Feature, damage: Damage) -> np.ndarray:
    """Where the one value of each row lies, as (start, length); (0, 0) for rows without one."""
    counts = kernel.count_values(buf, spans, BYTES)
    missing = spans[:, 0] < 0
    for row in np.flatnonzero((counts != 1) & ~missing):
        damage(int(row), _wrong_count(feature, int(counts[row]), 1))
    counts[counts != 1] = 0
    offsets = _offsets(counts)
    places = np.zeros((len(spans), 2), np.int64)
    places[counts == 1] = kernel.locate_bytes(buf, spans, offsets)
    return places


def _single(buf: np.ndarray, spans: np.ndarray, feature: Feature, damage: Damage) -> Column:
    places = single_places(buf, spans, feature, damage)
    if feature.raw:
        return _raw(buf, places, feature, damage)
    column = binary_column(buf, places)
    missing = spans[:, 0] < 0
    if feature.default is not None and missing.any():
        default = np.asarray(feature.default).reshape(-1)[0]
        value = default.encode() if isinstance(default, str) else bytes(default)
        column = pc.if_else(pa.array(missing), pa.scalar(value, pa.large_binary()), column)
    return _text(column, np.arange(len(column)), feature, damage) if feature.text else column


def _raw(buf: np.ndarray, places: np.ndarray, feature: Feature, damage: Damage) -> Column:
    """Bytes that are the memory of an array."""
    nbytes = feature.count * feature.dtype.itemsize
    for row in np.flatnonzero(places[:, 1] != nbytes):
        damage(int(row), f"feature {feature.name!r} has {places[row, 1]} bytes where {feature.shape} "
                         f"{feature.dtype} takes {nbytes}")  # fmt: skip
    good = places[:, 1] == nbytes
    out = np.zeros(len(places) * nbytes, np.uint8)
    kernel.gather_bytes(buf, places[good], np.flatnonzero(good) * nbytes, out)
    shape = [n for n in feature.shape if n is not None]
    return out.view(feature.dtype).reshape(len(places), *shape)


def _steps(buf: np.ndarray, spans: np.ndarray, feature: Feature, damage: Damage) -> Column:
    """A list of steps a row: of values, of arrays, or of lists."""
    counts, codes = kernel.count_steps(buf, spans, feature.kind)
    for row in np.flatnonzero(codes):
        damage(int(row), f"the steps of feature {feature.name!r} are damaged or of another kind")
    counts[codes != 0] = 0
    offsets = _offsets(counts)
    steps = kernel.locate_steps(buf, spans, offsets)

    def step_damage(step: int, reason: str) -> None:
        damage(int(np.searchsorted(offsets, step, side="right")) - 1, f"{reason}, in one of its steps")

    sizes = _counts(buf, steps, feature, step_damage)
    inner = feature.shape[1:]
    if None not in inner:
        width = feature.count
        for step in np.flatnonzero(sizes != width):
            step_damage(int(step), _wrong_count(feature, int(sizes[step]), width))
        if np.any(sizes != width):  # the rows are dropped, but the others need their values at their places
            rows = np.repeat(np.arange(len(spans)), counts)
            wrong = np.bincount(rows[sizes != width], minlength=len(spans)) > 0
            keep = ~wrong[rows]
            steps, sizes, counts = steps[keep], sizes[keep], np.where(wrong, 0, counts)
            offsets = _offsets(counts)
    ends = _offsets(sizes)
    values = _values(buf, steps, ends, feature, damage)
    return _lists(offsets, values if inner == () else _lists(ends, values))


def _counts(buf: np.ndarray, spans: np.ndarray, feature: Feature, damage: Damage) -> np.ndarray:
    """Values in each list, 0 where it is damaged."""
    counts = kernel.count_values(buf, spans, feature.kind)
    for row in np.flatnonzero(counts < 0):
        damage(int(row), f"the values of feature {feature.name!r} are damaged")
    counts[counts < 0] = 0
    if not feature.listed and feature.shape[:1] != (None,):
        _refuse(counts != feature.count, counts, feature, damage)
    elif not feature.listed and feature.count > 1:
        _refuse(counts % feature.count != 0, counts, feature, damage)
    return counts


def _refuse(wrong: np.ndarray, counts: np.ndarray, feature: Feature, damage: Damage) -> None:
    for row in np.flatnonzero(wrong):
        damage(int(row), _wrong_count(feature, int(counts[row]), feature.count))
    counts[wrong] = 0


def _wrong_count(feature: Feature, found: int, wanted: int) -> str:
    if found < 0:
        return f"the values of feature {feature.name!r} are damaged"
    return (
        f"feature {feature.name!r} has {found} values where {wanted} were expected; "
        f"features={{{feature.name!r}: (dtype, (None,))}} takes any number"
    )


def _values(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, feature: Feature, damage: Damage) -> pa.Array:
    """The values of all lists, one after the other."""
    if feature.kind == BYTES:
        column = binary_column(buf, kernel.locate_bytes(buf, spans, offsets))
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return _text(column, rows, feature, damage) if feature.text else column
    write = kernel.write_floats if feature.kind == FLOAT else kernel.write_ints
    values = write(buf, spans, offsets)
    cast, wrong = narrowed(values, feature.dtype)
    for i in np.flatnonzero(wrong):
        damage(int(np.searchsorted(offsets, i, side="right")) - 1, _too_wide(feature, values[i]))
    return arrow_of(cast)


def narrowed(values: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Values in another dtype, and which of them (first axis) do not fit in it."""
    if values.dtype == dtype or dtype == OBJECT:
        return values, np.zeros(0, bool)
    cast = values.astype(dtype)
    if dtype.kind not in "iu" or values.dtype.kind not in "iu":
        return cast, np.zeros(0, bool)
    limits = np.iinfo(dtype)
    # Compared as Python numbers: uint64's upper limit is beyond int64.
    low, high = max(limits.min, -(1 << 63)), min(limits.max, (1 << 63) - 1)
    wrong: np.ndarray = (values < low) | (values > high)
    return cast, np.any(wrong.reshape(len(values), math.prod(values.shape[1:])), axis=1)


def _too_wide(feature: Feature, value: object) -> str:
    return f"feature {feature.name!r} has the value {value}, which {feature.dtype} cannot hold"


def binary_column(buf: np.ndarray, places: np.ndarray) -> pa.Array:
    """Stretches of a buffer, as (start, length), copied to an Arrow column of bytes."""
    offsets = _offsets(places[:, 1])
    data = np.empty(int(offsets[-1]), np.uint8)
    kernel.gather_bytes(buf, places, offsets, data)
    return pa.Array.from_buffers(pa.large_binary(), len(places), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(column: pa.Array, rows: np.ndarray, feature: Feature, damage: Damage) -> pa.Array:
    """Bytes as text; `rows` tells to which row each value belongs."""
    try:
        return pc.cast(column, pa.large_string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    for i, value in enumerate(values):
        try:
            values[i] = None if value is None else value.decode()
        except UnicodeDecodeError as error:
            damage(int(rows[i]), f"feature {feature.name!r} is not UTF-8 text: {error.reason} at byte {error.start}")
            values[i] = ""
    return pa.array(values, pa.large_string())


def _offsets(counts: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(arrow_of(offsets.astype(np.int64, copy=False)), values)

"""Compiled: the protocol buffer wire format, read with every bound checked.

Covers: variable-length integers, nested messages, unknown fields, map entries, and the three lists that a
tf.train.Feature can hold.
Does not cover: which features are wanted and where they go (sources/tfrecord_kernel.py, sources/list_kernel.py).

All places are addresses and every message is a pair (start, end) of them. A place of -1 says that the message is
damaged. No function reads at or beyond `end`, so the caller has only to make sure of the outermost pair.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.core.raw_memory import Number, copy_bytes, load_f32, load_u8, load_u64, store_f32, store_i64

BYTES, FLOAT, INT = 1, 2, 3
"""Kinds of feature: their field numbers in the Feature message."""

FIRST, SECOND, THIRD = 0x0A, 0x12, 0x1A
"""Tags of a length-delimited field 1, 2 and 3."""

FIRST_VARINT, FIRST_FIXED = 0x08, 0x0D
"""Tags of field 1 as a variable-length integer and as four bytes: lists that were written unpacked."""


@numba.njit(nogil=True, cache=True)
def varint(place: Number, end: Number) -> Number:
    """A variable-length integer and the place after it."""
    if place >= end:
        return np.uint64(0), -1
    byte = load_u8(place)
    if byte < 128:
        return np.uint64(byte), place + 1
    value = np.uint64(byte & 127)
    shift = 7
    while shift < 70:
        place += 1
        if place >= end:
            return np.uint64(0), -1
        byte = load_u8(place)
        value |= np.uint64(byte & 127) << np.uint64(shift)
        if byte < 128:
            return value, place + 1
        shift += 7
    return np.uint64(0), -1


@numba.njit(nogil=True, cache=True)
def message(place: Number, end: Number) -> Number:
    """Start and end of a length-delimited field whose tag was just read."""
    length, start = varint(place, end)
    if start < 0 or length > np.uint64(end - start):
        return 0, -1
    return start, start + np.int64(length)


@numba.njit(nogil=True, cache=True)
def skip(tag: Number, place: Number, end: Number) -> Number:
    """The place after a field that nobody asked for."""
    wire = tag & np.uint64(7)
    if wire == 0:
        return varint(place, end)[1]
    if wire == 2:
        return message(place, end)[1]
    width = 8 if wire == 1 else 4
    if (wire != 1 and wire != 5) or place + width > end:
        return -1
    return place + width


@numba.njit(nogil=True, cache=True)
def entry(start: Number, end: Number) -> Number:
    """Of a map entry: where its key and its value lie; the last is -1 if it is damaged."""
    key, key_end, value, value_end, place = start, start, end, end, start
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return 0, 0, 0, -1
        if tag == FIRST:
            key, key_end = message(place, end)
            place = key_end
        elif tag == SECOND:
            value, value_end = message(place, end)
            place = value_end
        else:
            place = skip(tag, place, end)
        if place < 0:
            return 0, 0, 0, -1
    return key, key_end, value, value_end


@numba.njit(nogil=True, cache=True)
def one_of(start: Number, end: Number) -> Number:
    """Of a Feature: its kind (0 if unset, -1 if damaged) and where its list lies. The last list counts."""
    kind: Number = 0
    first, last, place = start, start, start
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return -1, 0, 0
        if tag in (FIRST, SECOND, THIRD):
            first, last = message(place, end)
            kind, place = np.int64(tag >> np.uint64(3)), last
        else:
            place = skip(tag, place, end)
        if place < 0:
            return -1, 0, 0
    return kind, first, last


@numba.njit(nogil=True, cache=True)
def floats_to(place: Number, end: Number, target: Number, room: Number) -> Number:
    """Write a FloatList to `target`; the number of values, `room` + 1 if there are more, or -1 if damaged."""
    found = 0
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return -1
        if tag == FIRST:
            first, place = message(place, end)
            if place < 0 or (place - first) & 3:
                return -1
            many = (place - first) >> 2
            if many > room - found:
                return room + 1
            if many == 1:
                store_f32(target + 4 * found, load_f32(first))
            else:
                copy_bytes(target + 4 * found, first, place - first)
            found += many
        elif tag == FIRST_FIXED:
            if place + 4 > end:
                return -1
            if found == room:
                return room + 1
            store_f32(target + 4 * found, load_f32(place))
            found += 1
            place += 4
        else:
            place = skip(tag, place, end)
            if place < 0:
                return -1
    return found


@numba.njit(nogil=True, cache=True)
def ints_to(place: Number, end: Number, target: Number, room: Number, as_float: bool) -> Number:
    """Write an Int64List to `target`; the number of values, `room` + 1 if there are more, or -1 if damaged."""
    found = 0
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return -1
        if tag != FIRST and tag != FIRST_VARINT:
            place = skip(tag, place, end)
            if place < 0:
                return -1
            continue
        last = end
        if tag == FIRST:
            place, last = message(place, end)
            if last < 0:
                return -1
        while place < last:
            value, place = varint(place, last)
            if place < 0:
                return -1
            if found == room:
                return room + 1
            if as_float:
                store_f32(target + 4 * found, np.float32(np.int64(value)))
            else:
                store_i64(target + 8 * found, np.int64(value))
            found += 1
            if tag == FIRST_VARINT:
                break
    return found


@numba.njit(nogil=True, cache=True)
def same(left: Number, right: Number, length: Number) -> Number:
    """Whether two stretches of bytes are equal."""
    if length >= 8:
        last = length - 8
        for i in range(0, last, 8):
            if load_u64(left + i) != load_u64(right + i):
                return False
        return bool(load_u64(left + last) == load_u64(right + last))
    for i in range(length):  # noqa: SIM110  (compiled code has no generators)
        if load_u8(left + i) != load_u8(right + i):
            return False
    return True


@numba.njit(nogil=True, cache=True)
def hash_at(place: Number, length: Number) -> Number:
    """FNV-1a over bytes, for tables of feature names."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(length):
        value = (value ^ np.uint64(load_u8(place + i))) * np.uint64(0x100000001B3)
    return np.int64(value >> np.uint64(20))


@numba.njit(nogil=True, cache=True)
def hash_of(data: np.ndarray) -> Number:
    """The hash of a byte array, as the kernels compute it."""
    return hash_at(data.ctypes.data, len(data))

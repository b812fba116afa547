"""Compiled: rows of PostgreSQL's binary COPY stream straight into the buffers of Arrow columns.

Covers: the messages of the stream with every bound checked, numbers and times (byte order, epoch), text and bytes,
missing values, and `numeric` as float64 where that is one correctly rounded operation.
Does not cover: the connection (sources/sql_wire.py), columns around the buffers (sources/sql_copy.py).

A message is: 'd', its length without that letter (4 bytes), the number of fields (2), and for each field its length
(4, or -1 for NULL) and its bytes. All numbers are big-endian.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from penstock.core.raw_memory import (
    Number,
    copy_bytes,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    loader,
    store_i64,
    storer,
)

MORE, CONTROL, FULL, DAMAGED = range(4)
"""Why rows end: the rest has not arrived, a message that is no row, no room for this row, nonsense."""

BYTE, SHORT, WORD, LONG, DAY, MOMENT, OPEN = range(7)
"""Kinds of column: 1, 2, 4 and 8 bytes, days, microseconds, and bytes of open length."""

WIDTHS = (1, 2, 4, 8, 4, 8, 0)

KIND, PLACE, VALID, NULLS, ROOM, COLUMN = range(6)
"""A column's numbers: kind, address of its values (its offsets, if open), of a byte a row that says whether there is a
value, of the count of missing ones, and bytes of room for values that are open; their number."""

EPOCH_DAYS, EPOCH_US = 10_957, 946_684_800_000_000
"""PostgreSQL counts from the year 2000."""


class Job(NamedTuple):
    """Columns, and for each open one the address of its bytes."""

    columns: np.ndarray
    data: np.ndarray
    capacity: int


def _swap(bits: int, kind: Any) -> Any:
    """An intrinsic that turns the bytes of a number around."""

    def typed(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bswap(args[0])

        return kind(kind), generate

    return typed


swap_u16: Any = intrinsic(_swap(16, types.uint16))
swap_u32: Any = intrinsic(_swap(32, types.uint32))
swap_u64: Any = intrinsic(_swap(64, types.uint64))
load_u16: Any = intrinsic(loader(types.uint16, ir.IntType(16)))
store_u8: Any = intrinsic(storer(types.uint8, ir.IntType(8)))
store_u16: Any = intrinsic(storer(types.uint16, ir.IntType(16)))
store_u32: Any = intrinsic(storer(types.uint32, ir.IntType(32)))
store_u64: Any = intrinsic(storer(types.uint64, ir.IntType(64)))


@numba.njit(nogil=True, cache=True)
def missing(column: Number, row: Number, kind: Number) -> None:
    """Note that a row has no value; numbers get a zero, open columns no bytes."""
    store_u8(load_i64(column + 8 * VALID) + row, np.uint8(0))
    nulls = load_i64(column + 8 * NULLS)
    store_i64(nulls, load_i64(nulls) + 1)
    place = load_i64(column + 8 * PLACE)
    if kind == OPEN:
        store_u32(place + 4 * row + 4, load_u32(place + 4 * row))
    elif kind in (LONG, MOMENT):
        store_u64(place + 8 * row, np.uint64(0))
    elif kind in (WORD, DAY):
        store_u32(place + 4 * row, np.uint32(0))
    elif kind == SHORT:
        store_u16(place + 2 * row, np.uint16(0))
    else:
        store_u8(place + row, np.uint8(0))


@numba.njit(nogil=True, cache=True)
def number_to(at: Number, length: Number, row: Number, kind: Number, column: Number) -> Number:
    """Store a number; DAMAGED if it has not its type's length, else MORE."""
    place = load_i64(column + 8 * PLACE)
    if kind == WORD:
        if length != 4:
            return DAMAGED
        store_u32(place + 4 * row, swap_u32(load_u32(at)))
    elif kind == LONG:
        if length != 8:
            return DAMAGED
        store_u64(place + 8 * row, swap_u64(load_u64(at)))
    elif kind == MOMENT:
        if length != 8:
            return DAMAGED
        moment = np.int64(swap_u64(load_u64(at)))
        # The least and the greatest stand for the infinities, which no array of times can hold.
        if moment == np.int64(-(2**63)) or moment > np.int64(2**63 - 1 - EPOCH_US):
            missing(column, row, kind)
        else:
            store_i64(place + 8 * row, moment + EPOCH_US)
    elif kind == DAY:
        if length != 4:
            return DAMAGED
        day = np.int64(np.int32(swap_u32(load_u32(at))))
        if day == -(2**31) or day > 2**31 - 1 - EPOCH_DAYS:
            missing(column, row, kind)
        else:
            store_u32(place + 4 * row, np.uint32(day + EPOCH_DAYS))
    elif kind == SHORT:
        if length != 2:
            return DAMAGED
        store_u16(place + 2 * row, swap_u16(load_u16(at)))
    else:
        if length != 1:
            return DAMAGED
        store_u8(place + row, load_u8(at))
    return MORE


@numba.njit(nogil=True, cache=True)
def row_to(at: Number, end: Number, row: Number, columns: Number, data: Number, many: Number) -> Number:
    """Store the fields of one row. MORE if all is well, FULL if an open value finds no room."""
    for i in range(many):
        if at + 4 > end:
            return DAMAGED
        length = np.int64(np.int32(swap_u32(load_u32(at))))
        at += 4
        column = columns + 8 * COLUMN * i
        kind = load_i64(column)
        if length < 0:
            if length != -1:
                return DAMAGED
            missing(column, row, kind)
            continue
        if length > end - at:
            return DAMAGED
        if kind == OPEN:
            offsets = load_i64(column + 8 * PLACE)
            first = np.int64(load_u32(offsets + 4 * row))
            if length > load_i64(column + 8 * ROOM) - first:
                return FULL
            copy_bytes(load_i64(data + 8 * i) + first, at, length)
            store_u32(offsets + 4 * row + 4, np.uint32(first + length))
        elif number_to(at, length, row, kind, column) != MORE:
            return DAMAGED
        at += length
    return MORE if at == end else DAMAGED


@numba.njit(nogil=True, cache=True)
def take_rows(buf: np.ndarray, start: Number, end: Number, job: Job, row: Number) -> Number:
    """Store the rows that lie whole in `buf[start:end]`, from number `row` on: next row, place after, and why."""
    first, many = buf.ctypes.data, len(job.columns)
    columns, data = job.columns.ctypes.data, job.data.ctypes.data
    while True:
        if end - start < 7:
            return row, start, MORE if start == end or buf[start] == 100 else CONTROL
        if buf[start] != 100:
            return row, start, CONTROL
        size = np.int64(swap_u32(load_u32(first + start + 1)))
        after = start + 1 + size
        if size < 6:
            return row, start, DAMAGED
        if after > end:
            return row, start, MORE
        fields = np.int64(swap_u16(load_u16(first + start + 5)))
        if fields == 0xFFFF:  # the end of the data; what follows is no row
            start = after
            continue
        if fields != many:
            return row, start, DAMAGED
        if row == job.capacity:
            return row, start, FULL
        code = row_to(first + start + 7, first + after, row, columns, data, many)
        if code != MORE:
            return row, start, code
        row, start = row + 1, after


@numba.njit(nogil=True, cache=True)
def numeric_to(data: np.ndarray, offsets: np.ndarray, powers: np.ndarray, out: np.ndarray, odd: np.ndarray) -> Number:
    """`numeric` values as float64; `odd` gets the rows that are not one exact operation, and their number is returned.

    A value is digits of base 10,000: how many, the weight of the first, a sign, a scale, and the digits.
    """
    found, first = 0, data.ctypes.data
    for row in range(len(out)):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        out[row] = 0.0
        if end - start < 8:
            if end > start:
                return -1
            continue
        at = first + start
        digits = np.int64(swap_u16(load_u16(at)))
        weight = np.int64(np.int16(swap_u16(load_u16(at + 2))))
        sign = swap_u16(load_u16(at + 4))
        if end - start != 8 + 2 * digits:
            return -1
        power = 4 * (weight - digits + 1)
        if digits > 4 or (sign != 0 and sign != 0x4000) or power > 22 or power < -22:
            odd[found] = row
            found += 1
            continue
        whole = np.int64(0)
        for i in range(digits):
            whole = whole * 10_000 + np.int64(swap_u16(load_u16(at + 8 + 2 * i)))
        if whole > np.int64(2**53):
            odd[found] = row
            found += 1
            continue
        value = np.float64(whole) * powers[power] if power >= 0 else np.float64(whole) / powers[-power]
        out[row] = -value if sign else value
    return found

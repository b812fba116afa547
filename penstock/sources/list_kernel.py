"""Compiled: the values of features whose number differs from record to record.

Covers: counting and writing the values of located lists, the steps of a SequenceExample, gathering bytes.
Does not cover: locating the lists (sources/tfrecord_kernel.py), columns of the values (sources/example_columns.py).

`spans` is (rows, 2): start in the buffer and length, as `parse` noted them; a start of -1 is a missing list, which is
empty. Spans lie inside the buffer because `parse` made them; what is inside a span is checked here.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.core.raw_memory import Number, copy_bytes
from penstock.sources.tfrecord_kernel import BAD_WIRE, OK, WRONG_KIND
from penstock.sources.wire_kernel import (
    BYTES,
    FIRST,
    FIRST_FIXED,
    FIRST_VARINT,
    FLOAT,
    floats_to,
    ints_to,
    message,
    one_of,
    skip,
    varint,
)


@numba.njit(nogil=True, cache=True)
def values_in(place: Number, end: Number, kind: Number) -> Number:
    """The number of values in one list, or -1 if it is damaged."""
    found = 0
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return -1
        if tag == FIRST:
            start, place = message(place, end)
            if place < 0:
                return -1
            if kind == BYTES:
                found += 1
            elif kind == FLOAT:
                if (place - start) & 3:
                    return -1
                found += (place - start) >> 2
            else:
                while start < place:
                    _, start = varint(start, place)
                    if start < 0:
                        return -1
                    found += 1
            continue
        if (tag == FIRST_FIXED and kind == FLOAT) or (tag == FIRST_VARINT and kind != FLOAT and kind != BYTES):
            found += 1
        place = skip(tag, place, end)
        if place < 0:
            return -1
    return found


@numba.njit(nogil=True, cache=True)
def count_values(buf: np.ndarray, spans: np.ndarray, kind: Number, counts: np.ndarray) -> Number:
    """Count the values of each list; a damaged list counts -1. Returns the number of damaged ones."""
    bad, first = 0, buf.ctypes.data
    for row in range(len(spans)):
        counts[row] = 0
        if spans[row, 0] >= 0:
            start = first + spans[row, 0]
            counts[row] = values_in(start, start + spans[row, 1], kind)
            bad += counts[row] < 0
    return bad


@numba.njit(nogil=True, cache=True)
def write_floats(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Write each list to `out[offsets[row]:offsets[row + 1]]`; the offsets come from `count_values`."""
    first, target = buf.ctypes.data, out.ctypes.data
    for row in range(len(spans)):
        start = first + spans[row, 0]
        room = offsets[row + 1] - offsets[row]
        if room:
            floats_to(start, start + spans[row, 1], target + 4 * offsets[row], room)


@numba.njit(nogil=True, cache=True)
def write_ints(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """As `write_floats`, for integers."""
    first, target = buf.ctypes.data, out.ctypes.data
    for row in range(len(spans)):
        start = first + spans[row, 0]
        room = offsets[row + 1] - offsets[row]
        if room:
            ints_to(start, start + spans[row, 1], target + 8 * offsets[row], room, False)


@numba.njit(nogil=True, cache=True)
def locate_bytes(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> None:
    """Note where each value of each list of bytes lies, as (start, length)."""
    first = buf.ctypes.data
    for row in range(len(spans)):
        place = first + spans[row, 0]
        end = place + spans[row, 1]
        at = offsets[row]
        while at < offsets[row + 1]:
            tag, place = varint(place, end)
            if tag == FIRST:
                start, place = message(place, end)
                places[at, 0] = start - first
                places[at, 1] = place - start
                at += 1
            else:
                place = skip(tag, place, end)


@numba.njit(nogil=True, cache=True)
def gather_bytes(buf: np.ndarray, places: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Copy stretches of the buffer one after the other; `offsets` are the sums of their lengths."""
    first, target = buf.ctypes.data, out.ctypes.data
    for i in range(len(places)):
        copy_bytes(target + offsets[i], first + places[i, 0], places[i, 1])


@numba.njit(nogil=True, cache=True)
def count_steps(buf: np.ndarray, spans: np.ndarray, kind: Number, counts: np.ndarray, codes: np.ndarray) -> Number:
    """Count the steps of each FeatureList, and see that each is of the kind. Returns the number of damaged lists."""
    bad, first = 0, buf.ctypes.data
    for row in range(len(spans)):
        counts[row] = 0
        codes[row] = OK
        place = first + spans[row, 0]
        end = place + spans[row, 1] if spans[row, 0] >= 0 else place
        while place < end and codes[row] == OK:
            tag, place = varint(place, end)
            if place >= 0 and tag == FIRST:
                start, place = message(place, end)
                if place >= 0:
                    found = one_of(start, place)[0]
                    counts[row] += 1
                    codes[row] = BAD_WIRE if found < 0 else OK if found == 0 or found == kind else WRONG_KIND
            elif place >= 0:
                place = skip(tag, place, end)
            if place < 0:
                codes[row] = BAD_WIRE
        bad += codes[row] != OK
    return bad


@numba.njit(nogil=True, cache=True)
def locate_steps(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, steps: np.ndarray) -> None:
    """Note where the list of each step lies; an unset step is an empty list."""
    first = buf.ctypes.data
    for row in range(len(spans)):
        place = first + spans[row, 0]
        end = place + spans[row, 1]
        at = offsets[row]
        while at < offsets[row + 1]:
            tag, place = varint(place, end)
            if tag == FIRST:
                start, place = message(place, end)
                _, begin, last = one_of(start, place)
                steps[at, 0] = begin - first
                steps[at, 1] = last - begin
                at += 1
            else:
                place = skip(tag, place, end)

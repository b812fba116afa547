"""Compiled: find the frames of a TFRecord stretch, check them, and parse tf.train.Example straight into arrays.

Covers: `walk` (frames and the checksums of their lengths) and `parse` (the checksum of each record, features of a
fixed number of values written to their place, the places of all other features noted).
Does not cover: the wire format itself (sources/wire_kernel.py), values of features of varying length
(sources/list_kernel.py), what features are called and become (sources/example.py).

A frame is: length (8 bytes), masked CRC-32C of the length (4), the record, masked CRC-32C of the record (4).

Nothing is believed from one record to the next except as a guess that is compared. Records of one writer mostly list
their features in the same order and layout, so what stands before the values of a feature (tags, lengths, the key) is
compared with the same place in the record before, 8 bytes at a time; if it is equal, the values are where they were
then, and parsing a scalar feature takes a comparison and a copy instead of reading six nested messages.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from penstock.core.raw_memory import Number, copy_bytes, load_f32, load_i64, load_u32, load_u64, store_f32, store_i64
from penstock.sources.crc32c import masked_crc_at
from penstock.sources.wire_kernel import (
    FIRST,
    FLOAT,
    SECOND,
    entry,
    floats_to,
    hash_at,
    ints_to,
    message,
    one_of,
    same,
    skip,
    varint,
)

OK, BAD_LENGTH, TOO_LONG, TRUNCATED, BAD_CHECKSUM, BAD_WIRE, MISSING, WRONG_KIND, WRONG_COUNT = range(9)

KIND, COUNT, BASE, STRIDE, AS_FLOAT, OPTIONAL, LISTED, SPEC = range(8)
"""Columns of `Plan.specs`, and their number. COUNT is -1 where values are only located: BASE is then their span."""

HEADER, FRAME = 12, 16
"""Bytes before a record, and before and after it together."""

GUESSED = 512
"""Features of a record whose place is remembered for the next record."""

KEY, LENGTH, FEATURE, TEMPLATE, PREFIX, PAYLOAD, WAY, TARGET, STEP, NOTE = range(10)
"""What is remembered: where the key stands, its length and feature; and, of an entry that ends with its values, where
it begins, the bytes before the values (at least 8) and those of the values, how they are stored, where to for row 0,
and the bytes to the next row. TEMPLATE is -1 for other entries."""

ONE_FLOAT, FLOATS, AS_INT, INT_AS_FLOAT = range(4)
"""Ways to store the values of an entry."""

UNKNOWN = 1 << 62
"""Bytes left of a stream whose end nobody knows."""


class Plan(NamedTuple):
    """What to take out of a record: feature names as bytes, a hash table over them, and a row of numbers each."""

    names: np.ndarray
    starts: np.ndarray
    table: np.ndarray
    specs: np.ndarray
    check: bool
    sequence: bool


class Out(NamedTuple):
    """Where it goes: flat floats and integers, (row, span, start and length) of what is located, a code a row.

    `features` is the feature at fault; `seen` and `guess` are scratch. They are made outside (by `output`), because
    Numba frees an array of its own after the last mention of it, and only its address would be used after that.
    """

    floats: np.ndarray
    ints: np.ndarray
    spans: np.ndarray
    codes: np.ndarray
    features: np.ndarray
    seen: np.ndarray
    guess: np.ndarray


def output(rows: int, features: int, *, floats: int, ints: int, spans: int) -> Out:
    """Room for so many rows. Floats and integers are zero and spans are (-1, 0): missing, until something is put."""
    located = np.zeros((rows, spans, 2), np.int64)
    located[..., 0] = -1
    return Out(
        floats=np.zeros(floats, np.float32),
        ints=np.zeros(ints, np.int64),
        spans=located,
        codes=np.zeros(rows, np.int64),
        features=np.zeros(rows, np.int64),
        seen=np.zeros(features, np.int64),
        guess=np.full((2, GUESSED, NOTE), -1, np.int64),
    )


class Job(NamedTuple):
    """Addresses of the arrays of a plan and its output, and a scratch area of three numbers a guessed place."""

    buf: int
    names: int
    starts: int
    table: int
    mask: int
    specs: int
    features_count: int
    floats: int
    ints: int
    spans: int
    row_spans: int
    features: int
    seen: int


@numba.njit(nogil=True, cache=True)
def walk(
    buf: np.ndarray, start: Number, left: Number, check: bool, longest: Number, offsets: np.ndarray, lengths: np.ndarray
) -> Number:
    """Note the frames that begin in `buf`: how many, where the next one begins (perhaps beyond `buf`), and a code.

    `left` is the number of bytes from `buf[0]` to the end of the file.
    """
    found, place, size, first = 0, start, len(buf), buf.ctypes.data
    while found < len(offsets) and place < left:
        if place + HEADER > left:
            return found, place, TRUNCATED
        if place + HEADER > size:
            return found, place, OK
        length = load_u64(first + place)
        if check and masked_crc_at(first + place, 8) != load_u32(first + place + 8):
            return found, place, BAD_LENGTH
        if length > np.uint64(longest):
            return found, place, TOO_LONG
        after = place + FRAME + np.int64(length)
        if after > left:
            return found, place, TRUNCATED
        offsets[found] = place
        lengths[found] = np.int64(length)
        found += 1
        place = after
    return found, place, OK


@numba.njit(nogil=True, cache=True)
def number(job: Job, feature: Number, column: Number) -> Number:
    """One number of a feature's row in the plan."""
    return load_i64(job.specs + 8 * (feature * SPEC + column))


@numba.njit(nogil=True, cache=True)
def feature_of(key: Number, length: Number, listed: Number, job: Job) -> Number:
    """The number of the feature of this name in the plan, or -1. Context and steps may share a name."""
    slot = hash_at(key, length) & job.mask
    while True:
        feature = load_i64(job.table + 8 * slot)
        if feature < 0:
            return -1
        first = load_i64(job.starts + 8 * feature)
        after = load_i64(job.starts + 8 * feature + 8)
        if after - first == length and number(job, feature, LISTED) == listed and same(key, job.names + first, length):
            return feature
        slot = (slot + 1) & job.mask


@numba.njit(nogil=True, cache=True)
def guessed(key: Number, length: Number, listed: Number, note: Number, job: Job) -> Number:
    """The feature of a key: that of the record before at this place if the key is the same, else looked up."""
    if load_i64(note + 8 * LENGTH) == length and same(key, load_i64(note + 8 * KEY), length):
        return load_i64(note + 8 * FEATURE)
    feature = feature_of(key, length, listed, job)
    store_i64(note + 8 * KEY, key)
    store_i64(note + 8 * LENGTH, length)
    store_i64(note + 8 * FEATURE, feature)
    return feature


@numba.njit(nogil=True, cache=True)
def remember(start: Number, end: Number, value: Number, feature: Number, note: Number, job: Job) -> None:
    """Note the layout of an entry that was just stored, if it ends with one packed list of a fixed number of values."""
    store_i64(note + 8 * TEMPLATE, -1)
    count = number(job, feature, COUNT)
    kind, first, last = one_of(value, end)
    if last != end or count < 1 or (kind != FLOAT and count != 1):
        return
    tag, place = varint(first, last)
    payload, after = message(place, last) if tag == FIRST else (place, -1)
    if after != end or payload - start < 8 or (kind == FLOAT and after - payload != 4 * count):
        return
    store_i64(note + 8 * TEMPLATE, start)
    store_i64(note + 8 * PREFIX, payload - start)
    store_i64(note + 8 * PAYLOAD, after - payload)
    whole = kind != FLOAT and not number(job, feature, AS_FLOAT)
    width, target = (8, job.ints) if whole else (4, job.floats)
    way = ONE_FLOAT if count == 1 else FLOATS
    store_i64(note + 8 * WAY, way if kind == FLOAT else AS_INT if whole else INT_AS_FLOAT)
    store_i64(note + 8 * TARGET, target + width * number(job, feature, BASE))
    store_i64(note + 8 * STEP, width * number(job, feature, STRIDE))


@numba.njit(nogil=True, cache=True)
def put_alike(place: Number, end: Number, row: Number, note: Number, job: Job) -> Number:
    """Store an entry that is laid out as the one before; the place after it, or -1 if it is not."""
    template = load_i64(note + 8 * TEMPLATE)
    if template < 0:
        return -1
    prefix = load_i64(note + 8 * PREFIX)
    values = place + prefix
    after = values + load_i64(note + 8 * PAYLOAD)
    if after > end or load_u64(values - 8) != load_u64(template + prefix - 8):
        return -1
    i = np.int64(0)
    while i < prefix - 8:
        if load_u64(place + i) != load_u64(template + i):
            return -1
        i += 8
    target = load_i64(note + 8 * TARGET) + row * load_i64(note + 8 * STEP)
    way = load_i64(note + 8 * WAY)
    if way == ONE_FLOAT:
        store_f32(target, load_f32(values))
    elif way == FLOATS:
        copy_bytes(target, values, after - values)
    else:
        value, stop = varint(values, after)
        if stop != after:
            return -1
        if way == INT_AS_FLOAT:
            store_f32(target, np.float32(np.int64(value)))
        else:
            store_i64(target, np.int64(value))
    store_i64(job.seen + 8 * load_i64(note + 8 * FEATURE), row + 1)
    return after


@numba.njit(nogil=True, cache=True)
def locate(start: Number, end: Number, row: Number, feature: Number, job: Job) -> Number:
    """Note where a list lies, counted from the start of the buffer."""
    place = job.spans + 16 * (row * job.row_spans + number(job, feature, BASE))
    store_i64(place, start - job.buf)
    store_i64(place + 8, end - start)
    return OK


@numba.njit(nogil=True, cache=True)
def put(start: Number, end: Number, row: Number, feature: Number, job: Job) -> Number:
    """Store one feature of a record. Returns a code, or -1 where the feature is there but unset."""
    kind, first, last = one_of(start, end)
    if kind <= 0:
        return -1 if kind == 0 else BAD_WIRE
    if kind != number(job, feature, KIND):
        return WRONG_KIND
    count = number(job, feature, COUNT)
    if count < 0:
        return locate(first, last, row, feature, job)
    at = number(job, feature, BASE) + row * number(job, feature, STRIDE)
    if kind == FLOAT:
        found = floats_to(first, last, job.floats + 4 * at, count)
    elif number(job, feature, AS_FLOAT):
        found = ints_to(first, last, job.floats + 4 * at, count, True)
    else:
        found = ints_to(first, last, job.ints + 8 * at, count, False)
    if found < 0:
        return BAD_WIRE
    return OK if found == count else WRONG_COUNT


@numba.njit(nogil=True, cache=True)
def entry_to(begin: Number, start: Number, end: Number, row: Number, listed: Number, note: Number, job: Job) -> Number:
    """Store one entry of a map of features (or of feature lists), if it is wanted; `begin` is the place of its tag."""
    key, key_end, value, value_end = entry(start, end)
    if value_end < 0:
        return BAD_WIRE
    feature = guessed(key, key_end - key, listed, note, job)
    if feature < 0:
        store_i64(note + 8 * TEMPLATE, -1)
        return OK
    store_i64(job.features + 8 * row, feature)
    if listed:
        code = locate(value, value_end, row, feature, job)
    else:
        code = put(value, value_end, row, feature, job)
        if code == OK and value_end == end:
            remember(begin, end, value, feature, note, job)
    store_i64(job.seen + 8 * feature, row + 1 if code == OK else 0)
    return max(code, OK)


@numba.njit(nogil=True, cache=True)
def features_to(place: Number, end: Number, row: Number, listed: Number, guess: Number, job: Job) -> Number:
    """Go through a map of features (or of feature lists) and store those that are wanted."""
    nth = 0
    while place < end:
        note = guess + 8 * NOTE * min(nth, GUESSED - 1)
        after = put_alike(place, end, row, note, job)
        if after >= 0:
            place = after
            nth += 1
            continue
        begin = place
        tag, place = varint(place, end)
        if place < 0:
            return BAD_WIRE
        if tag == FIRST:
            start, place = message(place, end)
            if place < 0:
                return BAD_WIRE
            code = entry_to(begin, start, place, row, listed, note, job)
            if code != OK:
                return code
            nth += 1
        else:
            place = skip(tag, place, end)
            if place < 0:
                return BAD_WIRE
    return OK


@numba.njit(nogil=True, cache=True)
def record_to(place: Number, end: Number, row: Number, sequence: bool, guess: Number, job: Job) -> Number:
    """Parse one Example or SequenceExample into row `row`."""
    while place < end:
        tag, place = varint(place, end)
        if place < 0:
            return BAD_WIRE
        if tag == FIRST or (tag == SECOND and sequence):
            first, place = message(place, end)
            if place < 0:
                return BAD_WIRE
            listed = 1 if tag == SECOND else 0
            code = features_to(first, place, row, listed, guess + listed * 8 * NOTE * GUESSED, job)
            if code != OK:
                return code
        else:
            place = skip(tag, place, end)
            if place < 0:
                return BAD_WIRE
    for feature in range(job.features_count):
        if load_i64(job.seen + 8 * feature) != row + 1 and not number(job, feature, OPTIONAL):
            store_i64(job.features + 8 * row, feature)
            return MISSING
    return OK


@numba.njit(nogil=True, cache=True)
def parse(buf: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, plan: Plan, out: Out) -> Number:
    """Parse the frames at `offsets`; the number of rows whose code is not OK."""
    bad, size, first = 0, len(buf), buf.ctypes.data
    job = Job(
        buf=first,
        names=plan.names.ctypes.data,
        starts=plan.starts.ctypes.data,
        table=plan.table.ctypes.data,
        mask=len(plan.table) - 1,
        specs=plan.specs.ctypes.data,
        features_count=len(plan.specs),
        floats=out.floats.ctypes.data,
        ints=out.ints.ctypes.data,
        spans=out.spans.ctypes.data,
        row_spans=out.spans.shape[1],
        features=out.features.ctypes.data,
        seen=out.seen.ctypes.data,
    )
    guess = out.guess.ctypes.data
    for row in range(len(offsets)):
        start, length = offsets[row] + HEADER, lengths[row]
        out.features[row] = -1
        if start < HEADER or length < 0 or start + length + 4 > size:
            code = TRUNCATED
        elif plan.check and masked_crc_at(first + start, length) != load_u32(first + start + length):
            code = BAD_CHECKSUM
        else:
            code = record_to(first + start, first + start + length, row, plan.sequence, guess, job)
        out.codes[row] = code
        bad += code != OK
    return bad


@numba.njit(nogil=True, cache=True)
def check_records(buf: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, check: bool, codes: np.ndarray) -> Number:
    """Check the frames at `offsets` without looking into the records; the number whose code is not OK."""
    bad, size, first = 0, len(buf), buf.ctypes.data
    for row in range(len(offsets)):
        start, length = offsets[row] + HEADER, lengths[row]
        codes[row] = OK
        if start < HEADER or length < 0 or start + length + 4 > size:
            codes[row] = TRUNCATED
        elif check and masked_crc_at(first + start, length) != load_u32(first + start + length):
            codes[row] = BAD_CHECKSUM
        bad += codes[row] != OK
    return bad

"""Whole blocks as framed tf.train.Example records, compiled.

Covers: columns of numbers, arrays of fixed length, text and bytes; lengths, both checksums and all.
Does not cover: rows of changing length, which go one by one (sources/tfrecord_write.py). The bytes are the same.

A record is Example{1: Features}, and Features is one entry a column: {1: {1: key, 2: Feature}}. Every column first
becomes its payload (float bytes, varints, text) with offsets; then each row's place in the output is known, and a
kernel puts heads and payloads there, column after column.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from penstock.core.raw_memory import copy_bytes
from penstock.core.schema import OBJECT
from penstock.sources.crc32c import byte_array, masked_crc_at

Number = Any

_FLOATS, _INTEGERS, _BYTES = 2, 3, 1


@dataclass(frozen=True)
class Payload:
    """What a column adds to each record."""

    key: np.ndarray
    """The key as it is stored: tag, length, name."""
    kind: int
    data: np.ndarray
    ends: np.ndarray
    """Row i is data[ends[i]:ends[i + 1]]."""


def encode_block(columns: Mapping[str, np.ndarray]) -> list[bytes] | None:
    """Framed records of all rows, or None if a column is of a kind that only the slow way knows."""
    payloads = []
    for name, column in columns.items():
        payload = _payload(name, column)
        if payload is None:
            return None
        payloads.append(payload)
    rows = len(payloads[0].ends) - 1
    sizes = np.zeros(rows, np.int64)
    for payload in payloads:
        _add_sizes(sizes, payload.ends, len(payload.key))
    starts = np.zeros(rows + 1, np.int64)
    _record_starts(sizes, starts)
    out = np.empty(int(starts[-1]), np.uint8)
    at = np.empty(rows, np.int64)
    _open_records(out, starts, sizes, at)
    for payload in payloads:
        _place(out, at, (payload.key, payload.data, payload.ends), payload.kind)
    _close_records(out, starts)
    whole = out.data
    return [bytes(whole[a:b]) for a, b in itertools.pairwise(starts.tolist())]


def _payload(name: str, column: np.ndarray) -> Payload | None:
    text = name.encode()
    key = np.frombuffer(b"\x0a" + _varint_bytes(len(text)) + text, np.uint8)
    rows = len(column)
    if column.dtype == OBJECT:
        return _stored(key, column)
    flat = column.reshape(rows, -1)
    if flat.shape[1] == 0 or rows == 0:
        return None
    if column.dtype.kind == "f":
        data = np.ascontiguousarray(flat, dtype="<f4").view(np.uint8).reshape(-1)
        return Payload(key, _FLOATS, byte_array(data), np.arange(rows + 1, dtype=np.int64) * (4 * flat.shape[1]))
    if column.dtype.kind in "iub":
        numbers = np.ascontiguousarray(flat.astype(np.uint64 if column.dtype.kind == "u" else np.int64)).view(np.uint64)
        ends = np.zeros(rows + 1, np.int64)
        _varint_ends(numbers, ends)
        data = np.empty(int(ends[-1]), np.uint8)
        _varints(numbers, data)
        return Payload(key, _INTEGERS, byte_array(data), ends)
    return None


def _stored(key: np.ndarray, column: np.ndarray) -> Payload | None:
    """Text and bytes: the payload is one value, which has a tag and a length of its own level (see `_place`)."""
    if column.ndim != 1 or not all(isinstance(value, (bytes, str)) for value in column):
        return None
    values = [value.encode() if isinstance(value, str) else value for value in column]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return Payload(key, _BYTES, byte_array(b"".join(values)), ends)


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@numba.njit(nogil=True, cache=True, inline="always")
def _width(value: Number) -> Number:
    """Bytes of a varint."""
    width, rest = 1, np.uint64(value) >> np.uint64(7)
    while rest:
        width += 1
        rest >>= np.uint64(7)
    return width


@numba.njit(nogil=True, cache=True, inline="always")
def _put(out: Number, at: Number, value: Number) -> Number:
    """Write a varint; where it ends."""
    rest = np.uint64(value)
    while rest > np.uint64(127):
        out[at] = np.uint8((rest & np.uint64(127)) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@numba.njit(nogil=True, cache=True)
def _varint_ends(numbers: np.ndarray, ends: np.ndarray) -> None:
    for row in range(numbers.shape[0]):
        width = 0
        for column in range(numbers.shape[1]):
            width += _width(numbers[row, column])
        ends[row + 1] = ends[row] + width


@numba.njit(nogil=True, cache=True)
def _varints(numbers: np.ndarray, out: np.ndarray) -> None:
    at = 0
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            at = _put(out, at, numbers[row, column])


@numba.njit(nogil=True, cache=True, inline="always")
def _feature_size(payload: Number) -> Number:
    """Bytes of a Feature with a list of so many bytes: {kind: {1: payload}}."""
    inner = 1 + _width(payload) + payload
    return 1 + _width(inner) + inner


@numba.njit(nogil=True, cache=True)
def _add_sizes(sizes: np.ndarray, ends: np.ndarray, key: int) -> None:
    """Add the bytes of one column's entry to each row."""
    for row in range(len(sizes)):
        feature = _feature_size(ends[row + 1] - ends[row])
        entry = key + 1 + _width(feature) + feature
        sizes[row] += 1 + _width(entry) + entry


@numba.njit(nogil=True, cache=True)
def _record_starts(sizes: np.ndarray, starts: np.ndarray) -> None:
    for row in range(len(sizes)):
        starts[row + 1] = starts[row] + 16 + 1 + _width(sizes[row]) + sizes[row]


@numba.njit(nogil=True, cache=True)
def _open_records(out: np.ndarray, starts: np.ndarray, sizes: np.ndarray, at: np.ndarray) -> None:
    """Write each Example's own head; `at` is where its first entry goes."""
    for row in range(len(sizes)):
        place = starts[row] + 12
        out[place] = 0x0A
        at[row] = _put(out, place + 1, sizes[row])


@numba.njit(nogil=True, cache=True)
def _place(out: np.ndarray, at: np.ndarray, column: Any, kind: int) -> None:
    """Write one column's entry into each record and move `at` behind it."""
    key, data, ends = column
    base, source = out.ctypes.data, data.ctypes.data
    for row in range(len(at)):
        payload = ends[row + 1] - ends[row]
        inner = 1 + _width(payload) + payload
        feature = 1 + _width(inner) + inner
        place = at[row]
        out[place] = 0x0A
        place = _put(out, place + 1, len(key) + 1 + _width(feature) + feature)
        for index in range(len(key)):
            out[place + index] = key[index]
        place += len(key)
        out[place] = 0x12
        place = _put(out, place + 1, feature)
        out[place] = np.uint8(kind << 3 | 2)
        place = _put(out, place + 1, inner)
        out[place] = 0x0A
        place = _put(out, place + 1, payload)
        copy_bytes(base + place, source + ends[row], payload)
        at[row] = place + payload


@numba.njit(nogil=True, cache=True)
def _close_records(out: np.ndarray, starts: np.ndarray) -> None:
    """Write each record's length and both checksums."""
    base = out.ctypes.data
    for row in range(len(starts) - 1):
        first, last = starts[row], starts[row + 1]
        length = np.uint64(last - first - 16)
        for index in range(8):
            out[first + index] = np.uint8((length >> np.uint64(8 * index)) & np.uint64(255))
        head = masked_crc_at(base + first, 8)
        body = masked_crc_at(base + first + 12, last - first - 16)
        for index in range(4):
            out[first + 8 + index] = np.uint8((head >> np.uint32(8 * index)) & np.uint32(255))
            out[last - 4 + index] = np.uint8((body >> np.uint32(8 * index)) & np.uint32(255))

"""Whole blocks as framed tf.train.Example records.

Covers: columns of numbers, arrays of fixed length, text and bytes; lengths, both checksums (native/example_write.c).
Does not cover: rows of changing length, which go one by one (sources/tfrecord/write.py). The bytes are the same.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.schema import OBJECT
from penstock.core.wire_format import delimited
from penstock.native.library import ADDRESS, INT64, Kernel, address

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
"""Kinds of feature: their field numbers in Feature."""

_varint_ends = Kernel("example_varint_ends", INT64, ADDRESS, INT64, INT64, ADDRESS)
_varints = Kernel("example_varints", INT64, ADDRESS, INT64, ADDRESS, INT64)
_sizes = Kernel("example_sizes", INT64, ADDRESS, INT64, INT64, ADDRESS, ADDRESS)
_write = Kernel("example_write", INT64, ADDRESS, INT64, INT64, ADDRESS, ADDRESS, ADDRESS, INT64)


class _Column(ctypes.Structure):
    """`column` of native/example_write.c."""

    _fields_ = [
        *((name, ADDRESS) for name in ("key", "data", "ends")),
        *((name, INT64) for name in ("key_len", "data_len", "kind")),
        *((name, INT64) for name in ("last_payload", "last_head", "last_head_len")),
    ]


@dataclass(frozen=True)
class Payload:
    """What a column adds to each record."""

    key: np.ndarray
    """The key as it is stored: tag, length, name."""
    kind: int
    data: np.ndarray
    ends: np.ndarray
    """Row i is data[ends[i]:ends[i + 1]]."""

    def column(self) -> _Column:
        """What the kernel is told; this payload must be kept meanwhile."""
        places = address(self.key), address(self.data), address(self.ends)
        return _Column(*places, len(self.key), self.data.nbytes, self.kind)


def encode_block(columns: Mapping[str, np.ndarray]) -> list[bytes] | None:
    """Framed records of all rows, or None if a column is of a kind that only the slow way knows."""
    payloads = []
    for name, column in columns.items():
        payload = _payload(name, column)
        if payload is None:
            return None
        payloads.append(payload)
    rows = len(payloads[0].ends) - 1
    told = (_Column * len(payloads))(*(payload.column() for payload in payloads))
    sizes, starts = np.empty(rows, np.int64), np.empty(rows + 1, np.int64)
    what = ctypes.addressof(told), len(payloads), rows, address(sizes), address(starts)
    out = np.empty(_sizes(*what), np.uint8)
    done = _write(*what, address(out), out.nbytes)
    if done < rows:
        raise InvalidInput(f"row {done} does not fit the {out.nbytes} bytes of the records.")
    whole = out.data
    return [bytes(whole[a:b]) for a, b in itertools.pairwise(starts.tolist())]


def _payload(name: str, column: np.ndarray) -> Payload | None:
    key, rows = np.frombuffer(delimited(1, name.encode()), np.uint8), len(column)
    if column.dtype == OBJECT:
        return _stored(key, column)
    flat = column.reshape(rows, -1)
    if flat.shape[1] == 0 or rows == 0:
        return None
    if column.dtype.kind == "f":
        data = np.ascontiguousarray(flat, dtype="<f4")
        return Payload(key, _FLOATS, data, np.arange(rows + 1, dtype=np.int64) * (4 * flat.shape[1]))
    if column.dtype.kind in "iub":
        numbers = np.ascontiguousarray(flat.astype(np.uint64 if column.dtype.kind == "u" else np.int64))
        ends = np.empty(rows + 1, np.int64)
        data = np.empty(int(_varint_ends(address(numbers), *numbers.shape, address(ends))), np.uint8)
        _varints(address(numbers), numbers.size, address(data), data.nbytes)
        return Payload(key, _INTEGERS, data, ends)
    return None


def _stored(key: np.ndarray, column: np.ndarray) -> Payload | None:
    """Text and bytes: the payload is one value, which has a tag and a length of its own level."""
    if column.ndim != 1 or not all(isinstance(value, (bytes, str)) for value in column):
        return None
    values = [value.encode() if isinstance(value, str) else value for value in column]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return Payload(key, _BYTES, np.frombuffer(b"".join(values), np.uint8), ends)

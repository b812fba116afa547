"""CRC-32C, and the masked form that TFRecord files carry.

Covers: the checksum of bytes or an array, and of many stretches in one call (native/crc32c.h).
Does not cover: what the bytes mean (tfrecord.py).
"""

from __future__ import annotations

import numpy as np

from penstock.native.library import ADDRESS, INT64, UINT32, Kernel, address

_plain = Kernel("crc32c", UINT32, ADDRESS, INT64)
_masked = Kernel("crc32c_masked", UINT32, ADDRESS, INT64)
_stretches = Kernel("crc32c_stretches", INT64, ADDRESS, INT64, ADDRESS, INT64, ADDRESS)


def crc32c(data: bytes | np.ndarray) -> int:
    """CRC-32C of bytes, or of a contiguous array's memory."""
    return int(_plain(*_bytes(data)))


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The checksum as TFRecord stores it: rotated and offset, so that a checksum of checksums stays sound."""
    return int(_masked(*_bytes(data)))


def crc32c_of_stretches(data: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """CRC-32C of each of the neighbouring stretches of an array of bytes that end at `ends`."""
    ends = np.ascontiguousarray(ends, np.int64)
    sums = np.empty(len(ends), np.uint32)
    done = _stretches(address(data), data.nbytes, address(ends), len(ends), address(sums))
    if done != len(ends):
        raise IndexError(f"stretch {done} ends at byte {int(ends[done])}, before its begin or beyond {data.nbytes}")
    return sums


def _bytes(data: bytes | np.ndarray) -> tuple[bytes | int, int]:
    return (data, len(data)) if isinstance(data, bytes) else (address(data), data.nbytes)

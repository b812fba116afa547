"""The frames of a stretch of a TFRecord file.

Covers: finding frames with the checksums of their lengths, checking records (native/tfrecord.c), codes of damage.
Does not cover: what is in the records (example.py), files (sources/tfrecord/index.py).

A frame is: length (8 bytes), masked CRC-32C of the length (4), the record, masked CRC-32C of the record (4).
"""

from __future__ import annotations

import numpy as np

from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

OK, BAD_LENGTH, TOO_LONG, TRUNCATED, BAD_CHECKSUM, BAD_WIRE, MISSING, WRONG_KIND, WRONG_COUNT = range(9)
"""What may be wrong with a frame or a record, as in native/tfrecord.h."""

HEADER, FRAME = 12, 16
"""Bytes before a record, and before and after it together."""

UNKNOWN = 1 << 62
"""Bytes left of a stream whose end nobody knows."""

_Progress = INT64 * 2

_walk = Kernel(
    "tfrecord_walk", INT32, ADDRESS, INT64, INT64, INT32, INT64, ADDRESS, ADDRESS, INT64, ADDRESS
)  # fmt: skip
_check = Kernel("tfrecord_check", INT64, ADDRESS, INT64, ADDRESS, ADDRESS, INT64, INT32, ADDRESS)


def walk(
    buf: np.ndarray, left: int, check: bool, longest: int, offsets: np.ndarray, lengths: np.ndarray
) -> tuple[int, int, int]:
    """Note the frames that begin in `buf`: how many, where the next one begins (perhaps beyond `buf`), and a code.

    `left` is the number of bytes from `buf[0]` to the end of the file; `offsets` and `lengths` (int64) are filled.
    """
    progress = _Progress()
    places = address(offsets), address(lengths), min(len(offsets), len(lengths)), progress
    code = _walk(address(buf), len(buf), left, check, min(longest, UNKNOWN), *places)
    return progress[0], progress[1], code


def check_records(buf: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, check: bool) -> np.ndarray:
    """A code for each of the frames at `offsets`, without looking into the records."""
    offsets, lengths = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(lengths, np.int64)
    codes = np.empty(len(offsets), np.int64)
    _check(address(buf), len(buf), address(offsets), address(lengths), len(offsets), check, address(codes))
    return codes

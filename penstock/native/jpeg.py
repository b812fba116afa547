"""Baseline JPEG files to pixels: the same as libjpeg-turbo's, in less time, or none.

Covers: calling the kernels (native/jpeg.c), the room they may take.
Does not cover: what is left to libjpeg-turbo (sources/images/decode.py): other kinds of JPEG, damaged files,
scaled decoding. Pixels are equal bit for bit, so that it does not matter who decodes what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

OK, OTHER, DAMAGED = 0, 1, 2
"""Decoded; not for these kernels; not readable as it stands."""

MOST_ROOM = 24_000_000
"""Bytes of working room for one picture (about 14 megapixels); larger ones are left to libjpeg-turbo, line by line."""

_BACKWARDS = {"rgb": 0, "bgr": 1}

_work_nbytes = Kernel("jpeg_work_nbytes", INT64)
_survey = Kernel("jpeg_survey", INT64, ADDRESS, INT64, ADDRESS, INT64)
_decode = Kernel(
    "jpeg_decode", INT32, ADDRESS, INT64, ADDRESS, ADDRESS, INT64, ADDRESS, INT64, INT32, INT32
)  # fmt: skip

Room = Callable[[str, int], np.ndarray]
"""Recycled memory by purpose, zero when it is new."""


@functools.cache
def work_nbytes() -> int:
    """Bytes of the memory that is kept from picture to picture."""
    return int(_work_nbytes())


def survey(data: bytes | np.ndarray, work: np.ndarray) -> int:
    """Read what stands before the pixels into `work`; the bytes of room that decoding needs, or 0: not for us."""
    return int(_survey(_start(data), len(data), address(work), work.nbytes))


def decode_surveyed(
    data: bytes | np.ndarray, work: np.ndarray, room: np.ndarray, out: np.ndarray, fast: bool, mode: str
) -> int:
    """After `survey` of the same data: pixels into `out`, flat bytes; OK, or why not."""
    places = address(work), address(room), room.nbytes, address(out), out.nbytes
    return int(_decode(_start(data), len(data), *places, int(fast), _BACKWARDS[mode]))


def decode(data: bytes, mode: str, fast: bool, out: np.ndarray, room: Room) -> bool:
    """Decode into `out` (flat bytes, exactly the picture's) if the kernels can: whether they have."""
    if mode not in _BACKWARDS:
        return False
    work = room("jpeg tables", work_nbytes())
    nbytes = survey(data, work)
    if not 0 < nbytes <= MOST_ROOM:
        return False
    return decode_surveyed(data, work, room("jpeg planes", nbytes), out, fast, mode) == OK


def _start(data: bytes | np.ndarray) -> bytes | int:
    return data if isinstance(data, bytes) else address(data)

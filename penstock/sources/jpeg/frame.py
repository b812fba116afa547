"""What a JPEG file says before its pixels, compiled: size, components, tables, and where the bits start.

Covers: baseline files of one interleaved scan in the common layouts of colour; everything else is named OTHER.
Does not cover: the bits themselves (jpeg/entropy.py).

Nothing is repaired here: what is not exactly as expected is left to the library, which knows how to warn.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

OK, OTHER, DAMAGED = 0, 1, 2
"""Read; not for this decoder; not readable as it stands."""

HEIGHT, WIDTH, ACROSS, DOWN, RESTART, START, COMPONENTS = range(7)
"""Places in `frame`: the size, luma samples for one chroma sample, MCUs between restarts, start of the bits, parts."""

QUANT, DC, AC = 0, 1, 2
"""Columns of a component's row in `parts`: which of the tables it uses."""

MOST_COMPONENTS = 3
SOF0, DHT, EOI, SOS, DQT, DRI, RST0 = 0xC0, 0xC4, 0xD9, 0xDA, 0xDB, 0xDD, 0xD0
COMMENT, JFIF, ADOBE = 0xFE, 0xE0, 0xEE


@numba.njit(nogil=True)
def _quantisation(data: Any, at: Any, end: Any, quants: Any) -> Any:
    while at < end:
        kind = data[at]
        if kind > 3 or at + 65 > end:  # 16-bit tables are for the library
            return OTHER
        for k in range(64):
            quants[kind, k] = data[at + 1 + k]
        at += 65
    return OK


@numba.njit(nogil=True)
def _huffman(data: Any, at: Any, end: Any, counts: Any, symbols: Any) -> Any:
    while at < end:
        if at + 17 > end:
            return DAMAGED
        kind, number = data[at] >> 4, data[at] & 15
        if kind > 1 or number > 3:
            return DAMAGED
        table = kind * 4 + number
        total = 0
        for k in range(16):
            counts[table, k] = data[at + 1 + k]
            total += counts[table, k]
        at += 17
        if total > 256 or at + total > end:
            return DAMAGED
        for k in range(total):
            symbols[table, k] = data[at + k]
        counts[table, 16] = total
        at += total
    return OK


@numba.njit(nogil=True)
def _start_of_frame(data: Any, at: Any, end: Any, frame: Any, parts: Any) -> Any:
    if end - at < 6 or data[at] != 8:
        return OTHER
    frame[HEIGHT] = (np.int64(data[at + 1]) << 8) | data[at + 2]
    frame[WIDTH] = (np.int64(data[at + 3]) << 8) | data[at + 4]
    count = np.int64(data[at + 5])
    if count != MOST_COMPONENTS or end - at != 6 + 3 * count:
        return OTHER
    frame[COMPONENTS] = count
    for k in range(count):
        place = at + 6 + 3 * k
        across, down = data[place + 1] >> 4, data[place + 1] & 15
        if data[place] != k + 1 or data[place + 2] > 3:  # identifiers other than 1, 2, 3 may mean RGB
            return OTHER
        parts[k, QUANT] = data[place + 2]
        if k == 0:
            frame[ACROSS], frame[DOWN] = across, down
        elif across != 1 or down != 1:
            return OTHER
    known = (frame[ACROSS] == 1 or frame[ACROSS] == 2) and (frame[DOWN] == 1 or frame[DOWN] == frame[ACROSS])
    return OK if known else OTHER


@numba.njit(nogil=True)
def _start_of_scan(data: Any, at: Any, end: Any, frame: Any, parts: Any) -> Any:
    count = frame[COMPONENTS]
    if count == 0 or end - at != 4 + 2 * count or data[at] != count:
        return OTHER
    for k in range(count):
        tables = data[at + 2 + 2 * k]
        if data[at + 1 + 2 * k] != k + 1 or tables >> 4 > 3 or tables & 15 > 3:
            return OTHER
        parts[k, DC], parts[k, AC] = tables >> 4, tables & 15
    last = at + 1 + 2 * count
    return OK if data[last] == 0 and data[last + 1] == 63 and data[last + 2] == 0 else OTHER


@numba.njit(nogil=True)
def read_frame(data: Any, frame: Any, parts: Any, quants: Any, counts: Any, symbols: Any) -> Any:
    """Fill the arrays up to the start of the bits; OK, OTHER or DAMAGED."""
    n, at = len(data), 2
    frame[:] = 0
    while at + 4 <= n:
        marker = data[at + 1]
        if data[at] != 0xFF:
            return DAMAGED
        length = (np.int64(data[at + 2]) << 8) | data[at + 3]
        body, end = at + 4, at + 2 + length
        if length < 2 or end > n:
            return DAMAGED
        found = OK
        if marker == DQT:
            found = _quantisation(data, body, end, quants)
        elif marker == DHT:
            found = _huffman(data, body, end, counts, symbols)
        elif marker == SOF0:
            found = _start_of_frame(data, body, end, frame, parts) if frame[COMPONENTS] == 0 else DAMAGED
        elif marker == DRI:
            if length != 4:
                return DAMAGED
            frame[RESTART] = (np.int64(data[body]) << 8) | data[body + 1]
        elif marker == SOS:
            frame[START] = end
            return _start_of_scan(data, body, end, frame, parts)
        elif marker == JFIF and length >= 14 and data[body] == ord("J") and data[body + 5] != 1:
            return OTHER  # a version that the library warns of
        elif marker == ADOBE or not (0xE0 <= marker <= 0xEF or marker == COMMENT):
            return OTHER  # Adobe's mark may mean other colours than YCbCr
        if found != OK:
            return found
        at = end
    return DAMAGED

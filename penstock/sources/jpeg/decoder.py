"""A whole JPEG file to pixels, compiled: what to do with each part of the file, in two calls.

Covers: the working memory and its parts, tables that are kept from file to file, restarts, lines of pixels.
Does not cover: when to use it (jpeg/__init__.py); the stages are frame, entropy, transform and colour.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from penstock.core.raw_memory import load_u8
from penstock.sources.jpeg import entropy
from penstock.sources.jpeg.colour import ROOM, close_edges, colour_line, colour_line_of_pairs, widen_line
from penstock.sources.jpeg.entropy import BLOCK, FACTORS, LOOKS, SLACK, TABLE_BYTES, make_table, read_run, unstuff
from penstock.sources.jpeg.frame import (
    AC,
    ACROSS,
    DAMAGED,
    DC,
    DOWN,
    EOI,
    HEIGHT,
    MOST_COMPONENTS,
    OK,
    OTHER,
    QUANT,
    RESTART,
    RST0,
    START,
    WIDTH,
    read_frame,
)
from penstock.sources.jpeg.transform import fast_scales

LEAST = 16
"""Pixels that a side must have: libjpeg filters narrower pictures differently."""

TABLES = 8
MOST_BLOCKS = 6
_ZIGZAG = [
    8 * y + x
    for line in range(15)
    for y, x in sorted(
        ((y, line - y) for y in range(8) if 0 <= line - y < 8), reverse=line % 2 == 0
    )
]  # fmt: skip
ORDER = 2 * np.array(_ZIGZAG)
"""Bytes from the start of a block to its coefficients in the order of the file."""

NOWHERE = 2 * 64
"""Bytes to the place behind a block that nobody reads."""

SCALES = fast_scales()[_ZIGZAG]


def _laid_out(**sizes: int) -> tuple[dict[str, int], int]:
    """Where each part starts, and the size of all."""
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = at
        at += size
    return places, at


_AT, WORK_SIZE = _laid_out(
    frame=8,
    parts=16,
    state=8,
    predictions=8,
    blocks=MOST_BLOCKS * BLOCK,
    spare=16,
    block=18,
    quants=4 * 64,
    factors=4 * FACTORS // 2,
    counts=TABLES * 17,
    symbols=TABLES * 256,
    made_counts=TABLES * 17,
    made_symbols=TABLES * 256,
    singles=LOOKS // 2,
    tables=TABLES * TABLE_BYTES // 8,
)
"""Parts of the working memory, in 64-bit words. It must be zero when it is new."""

_FRAME, _PARTS, _STATE, _PREDICTIONS, _BLOCKS, _SPARE, _BLOCK = (
    _AT[name] for name in ("frame", "parts", "state", "predictions", "blocks", "spare", "block")
)
_QUANTS, _FACTORS, _COUNTS, _SYMBOLS = (_AT[name] for name in ("quants", "factors", "counts", "symbols"))
_MADE_COUNTS, _MADE_SYMBOLS, _SINGLES, _TABLES = (
    _AT[name] for name in ("made_counts", "made_symbols", "singles", "tables")
)
_TABLE_WORDS = TABLE_BYTES // 8


@numba.njit(nogil=True)
def _sides(frame: Any) -> Any:
    """MCUs across and down; bytes from row to row of luma and chroma; rows of both."""
    wide = -(-frame[WIDTH] // (8 * frame[ACROSS]))
    high = -(-frame[HEIGHT] // (8 * frame[DOWN]))
    return wide, high, wide * 8 * frame[ACROSS] + 2 * ROOM, wide * 8 + 2 * ROOM


@numba.njit(nogil=True)
def _survey(data: Any, work: Any) -> Any:
    """Read what stands before the pixels into `work`; the bytes of room that decoding needs, or 0: not for us."""
    frame, parts = work[_FRAME : _FRAME + 8], work[_PARTS : _PARTS + 9].reshape(3, 3)
    quants = work[_QUANTS : _QUANTS + 256].reshape(4, 64)
    counts = work[_COUNTS : _COUNTS + TABLES * 17].reshape(TABLES, 17)
    symbols = work[_SYMBOLS : _SYMBOLS + TABLES * 256].reshape(TABLES, 256)
    counts[:, 16] = 0
    quants[:, 0] = -1
    if read_frame(data, frame, parts, quants, counts, symbols) != OK or min(frame[HEIGHT], frame[WIDTH]) < LEAST:
        return 0
    for k in range(MOST_COMPONENTS):
        if quants[parts[k, QUANT], 0] < 0 or counts[parts[k, DC], 16] == 0 or counts[4 + parts[k, AC], 16] == 0:
            return 0
    _, high, luma, chroma = _sides(frame)
    planes = luma * high * 8 * frame[DOWN] + 2 * chroma * high * 8
    return len(data) - frame[START] + SLACK + planes + 2 * (luma + ROOM) + 8 * ROOM


@numba.njit(nogil=True)
def _tables(work: Any) -> Any:
    """Make the look-up tables that the file uses, but for those that are there from the file before."""
    base = work.ctypes.data
    for component in range(MOST_COMPONENTS):
        for kind in range(2):
            table = 4 * kind + work[_PARTS + 3 * component + DC + kind]
            counts = work[_COUNTS + 17 * table : _COUNTS + 17 * (table + 1)]
            made = work[_MADE_COUNTS + 17 * table : _MADE_COUNTS + 17 * (table + 1)]
            symbols = work[_SYMBOLS + 256 * table : _SYMBOLS + 256 * (table + 1)]
            known = work[_MADE_SYMBOLS + 256 * table : _MADE_SYMBOLS + 256 * (table + 1)]
            same = True
            for k in range(17):
                same &= counts[k] == made[k]
            for k in range(counts[16] if same else 0):
                same &= symbols[k] == known[k]
            if same:
                continue
            made[16] = 0
            found = make_table(
                base + 8 * (_TABLES + table * _TABLE_WORDS), base + 8 * _SINGLES, counts, symbols, kind == 0
            )
            if found != OK:
                return found
            made[:] = counts
            known[:] = symbols
    return OK


@numba.njit(nogil=True)
def _factors(work: Any, quick: Any) -> None:
    """What each coefficient is multiplied with, in the order of the file."""
    factors = work[_FACTORS : _FACTORS + 4 * FACTORS // 2].view(np.int32)
    for table in range(4):
        for k in range(64):
            quant = work[_QUANTS + 64 * table + k]
            factor = (quant * SCALES[k] + 2048) >> 12 if quick else quant
            factors[FACTORS * table + k] = (factor << 16) | ORDER[k]
        factors[FACTORS * table + 64 : FACTORS * (table + 1)] = NOWHERE


@numba.njit(nogil=True)
def _blocks(work: Any, planes: Any, strides: Any) -> Any:
    """Describe each block of an MCU; returns how many there are."""
    base, n = work.ctypes.data, 0
    blocks = work[_BLOCKS : _BLOCKS + MOST_BLOCKS * BLOCK].reshape(MOST_BLOCKS, BLOCK)
    for c in range(MOST_COMPONENTS):
        across, down = (work[_FRAME + ACROSS], work[_FRAME + DOWN]) if c == 0 else (1, 1)
        stride = strides[0] if c == 0 else strides[1]
        quant, dc, ac = work[_PARTS + 3 * c + QUANT], work[_PARTS + 3 * c + DC], work[_PARTS + 3 * c + AC]
        for y in range(down):
            for x in range(across):
                info = blocks[n]
                info[entropy.BLOCK_DC] = base + 8 * (_TABLES + dc * _TABLE_WORDS)
                info[entropy.BLOCK_AC] = base + 8 * (_TABLES + (4 + ac) * _TABLE_WORDS)
                info[entropy.BLOCK_FACTORS] = base + 8 * _FACTORS + 4 * FACTORS * quant
                info[entropy.BLOCK_PREDICTION] = base + 8 * (_PREDICTIONS + c)
                info[entropy.BLOCK_PLANE] = planes[c] + 8 * x + 8 * y * stride
                info[entropy.BLOCK_STRIDE] = stride
                info[entropy.BLOCK_RIGHT] = 8 * across
                info[entropy.BLOCK_DOWN] = 8 * down * stride
                n += 1
    return n


@numba.njit(nogil=True)
def _scan(data: Any, work: Any, bits: Any, mcus: Any, quick: Any) -> Any:
    """All MCUs, from restart to restart."""
    base, source = work.ctypes.data, data.ctypes.data + work[_FRAME + START]
    end = data.ctypes.data + len(data)
    between = work[_FRAME + RESTART] if work[_FRAME + RESTART] else mcus
    done, restarts = 0, 0
    while True:
        work[_STATE] = bits
        work[_STATE + 1], source = unstuff(source, end, bits)
        if source + 2 > end:
            return DAMAGED
        work[_PREDICTIONS : _PREDICTIONS + MOST_COMPONENTS] = 0
        count = min(between, mcus - done)
        found = read_run(
            base + 8 * _STATE, base + 8 * _BLOCKS, base + 8 * _BLOCK, count, quick
        )  # fmt: skip
        if found != OK:
            return found
        done += count
        marker = load_u8(source + 1)
        if done == mcus:
            return OK if marker == EOI else OTHER
        if marker != RST0 + restarts % 8:
            return DAMAGED
        restarts += 1
        source += 2


@numba.njit(nogil=True)
def _lines(work: Any, planes: Any, strides: Any, lines: Any, out: Any, how: Any) -> None:
    """Every line of pixels, from the planes."""
    quick, backwards = how
    height, width, across, down = work[_FRAME : _FRAME + 4]
    samples, rows = -(-width // across), -(-height // down)
    spare = work.ctypes.data + 8 * _SPARE
    if across > 1 and not quick:
        close_edges(planes[1], strides[1], samples, rows)
        close_edges(planes[2], strides[1], samples, rows)
    for y in range(height):
        row, target = y // down, out + 3 * width * y
        luma, blue, red = planes[0] + y * strides[0], planes[1] + row * strides[1], planes[2] + row * strides[1]
        if across > 1 and quick:
            colour_line_of_pairs((luma, blue, red), target, width, backwards, spare)
            continue
        if across > 1:
            near = strides[1] * (min(rows - 1, row + 1) if y & 1 else max(0, row - 1))
            widen_line(blue, planes[1] + near if down > 1 else 0, lines[0], samples)
            widen_line(red, planes[2] + near if down > 1 else 0, lines[1], samples)
            blue, red = lines
        colour_line((luma, blue, red), target, width, backwards, spare)


@numba.njit(nogil=True)
def _decode(data: Any, work: Any, room: Any, out: Any, quick: Any, backwards: Any) -> Any:
    """After `survey` of the same data: pixels into `out`; OK, or why not (and then `out` holds anything)."""
    frame = work[_FRAME : _FRAME + 8]
    if len(out) != 3 * frame[HEIGHT] * frame[WIDTH]:
        return OTHER
    found = _tables(work)
    if found != OK:
        return found
    _factors(work, quick)
    wide, high, luma, chroma = _sides(frame)
    bits = room.ctypes.data
    first = bits + len(data) - frame[START] + SLACK + ROOM
    second = first + luma * high * 8 * frame[DOWN]
    planes = (first, second, second + chroma * high * 8)
    blue = planes[2] + chroma * high * 8 + ROOM
    work[_STATE + 2 : _STATE + 4] = 0
    work[_STATE + 4] = wide
    work[_STATE + 5] = _blocks(work, planes, (luma, chroma))
    found = _scan(data, work, bits, wide * high, quick)
    if found == OK:
        _lines(work, planes, (luma, chroma), (blue, blue + luma + ROOM), out.ctypes.data, (quick, backwards))
    return found


def _stamp() -> int:
    """A number for what all stages are made of."""
    sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return 1 + zlib.crc32(sources)


def _entries(stamp: int) -> tuple[Any, Any]:
    """The two functions to call from outside, compiled with all they call, or loaded.

    Numba's cache knows only the file of a function and the values that it closes over. So these close over the stamp
    of all stages, and the stages are not kept by themselves: a changed one is never mistaken for the old one.
    """

    @numba.njit("int64(Array(uint8, 1, 'C', readonly=True), int64[::1])", nogil=True, cache=True)
    def survey(data: Any, work: Any) -> Any:
        return _survey(data, work) if stamp else 0

    @numba.njit(
        "int64(Array(uint8, 1, 'C', readonly=True), int64[::1], uint8[::1], uint8[::1], boolean, boolean)",
        nogil=True,
        cache=True,
    )
    def decode(data: Any, work: Any, room: Any, out: Any, quick: Any, backwards: Any) -> Any:
        return _decode(data, work, room, out, quick, backwards) if stamp else OTHER

    return survey, decode


survey, decode = _entries(_stamp())
"""survey(data, work) and then decode(data, work, room, out, quick, backwards): see `_survey` and `_decode`."""

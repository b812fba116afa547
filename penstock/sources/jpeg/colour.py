"""Planes of samples to pixels, compiled: chroma made as wide and high as luma, and YCbCr to RGB, as libjpeg does.

Covers: libjpeg's triangle filter ("fancy upsampling") for planes of half the width, or half the width and height; plain
repetition of chroma instead ("merged upsampling"); the conversion to RGB and BGR.
Does not cover: samples from bits (jpeg/entropy.py).

All is bit for bit what libjpeg-turbo gives. Sixteen samples at a time; rows may be read and written a little beyond
their end, for which planes and lines have room.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
from llvmlite import ir

from penstock.core.raw_memory import copy_bytes
from penstock.sources.jpeg.vector import I8, I16, I64, Vector, by_turns, compiled, load, pick, store

WIDE = 16
"""Samples at a time."""

ROOM = 64
"""Bytes of room on both sides of a row."""

_SAMPLES, _NUMBERS = ir.VectorType(I8, WIDE), ir.VectorType(I16, WIDE)


def _samples(builder: Any, address: Any, at: int = 0) -> Vector:
    return Vector(builder, builder.zext(load(builder, _SAMPLES, address, at), _NUMBERS))


def _both(builder: Any, even: Any, odd: Any, target: Any) -> None:
    """Samples of even and odd columns, by turns."""
    for half in (0, 1):
        store(builder, by_turns(builder, even, odd, half), builder.add(target, ir.Constant(I64, WIDE * half)))


def _smooth_across(builder: Any, row: Any, target: Any, *_: Any) -> None:
    before, here, after = (_samples(builder, row, at) for at in (-1, 0, 1))
    even, odd = (here * 3 + before + 1) >> 2, (here * 3 + after + 2) >> 2
    _both(builder, builder.trunc(even.value, _SAMPLES), builder.trunc(odd.value, _SAMPLES), target)


def _smooth_both(builder: Any, row: Any, near: Any, target: Any, _: Any) -> None:
    before, here, after = (_samples(builder, row, at) * 3 + _samples(builder, near, at) for at in (-1, 0, 1))
    even, odd = (here * 3 + before + 8) >> 4, (here * 3 + after + 7) >> 4
    _both(builder, builder.trunc(even.value, _SAMPLES), builder.trunc(odd.value, _SAMPLES), target)


def _differences(builder: Any, blue: Any, red: Any) -> list[Vector]:
    """What chroma adds to luma for red, green and blue.

    A factor f with 16 bits behind the point is applied in 16 bits, as f * 256c / 2^16, and rounded after that.
    """
    cb, cr = _samples(builder, blue) - 128, _samples(builder, red) - 128
    r = cr + ((((cr << 8).times(26345, 16)) + 128) >> 8)
    g = ((cb.widened() * -22554 + cr.widened() * -46802 + 32768) >> 16).truncated()
    b = cb + cb + ((((cb << 8).times(-14942, 16)) + 128) >> 8)
    return [r, g, b]


def _write(builder: Any, luma: Vector, differences: list[Vector], target: Any, at: int) -> None:
    """Sixteen pixels of three bytes, `at` bytes behind an address."""
    channels = [(luma + difference).within(0, 255, 8) for difference in differences]
    for part in range(3):
        places = [(part * WIDE + j) // 3 for j in range(WIDE)]
        which = [(part * WIDE + j) % 3 for j in range(WIDE)]
        two = pick(builder, channels[0], channels[1], [p + WIDE * (w == 1) for p, w in zip(places, which)])
        mixed = [WIDE + p if w == 2 else j for j, (p, w) in enumerate(zip(places, which))]
        where = builder.add(target, ir.Constant(I64, at + part * WIDE))
        store(builder, pick(builder, two, channels[2], mixed), where)


def _pixels(backwards: bool, builder: Any, luma: Any, blue: Any, red: Any, target: Any) -> None:
    """Sixteen pixels, each with its own chroma."""
    differences = _differences(builder, blue, red)
    _write(builder, _samples(builder, luma), differences[::-1] if backwards else differences, target, 0)


def _pixel_pairs(backwards: bool, builder: Any, luma: Any, blue: Any, red: Any, target: Any) -> None:
    """Thirty-two pixels, two beside each other with the same chroma: its part is computed once for both."""
    differences = _differences(builder, blue, red)
    for half in (0, 1):
        twice = [Vector(builder, by_turns(builder, d.value, d.value, half)) for d in differences]
        luma_half = _samples(builder, luma, WIDE * half)
        _write(builder, luma_half, twice[::-1] if backwards else twice, target, 3 * WIDE * half)


_across: Any = compiled(_smooth_across)
_across_and_down: Any = compiled(_smooth_both)
_rgb: Any = compiled(functools.partial(_pixels, False))
_bgr: Any = compiled(functools.partial(_pixels, True))
_rgb_pairs: Any = compiled(functools.partial(_pixel_pairs, False))
_bgr_pairs: Any = compiled(functools.partial(_pixel_pairs, True))


@numba.njit(nogil=True)
def widen_line(row: Any, near: Any, target: Any, count: Any) -> None:
    """A smooth line of chroma at full width from `count` samples; `near` is the row beside it, 0 at full height."""
    for x in range(0, count, WIDE):
        if near:
            _across_and_down(row + x, near + x, target + 2 * x, 0)
        else:
            _across(row + x, target + 2 * x, 0, 0)


@numba.njit(nogil=True)
def colour_line(lines: Any, target: Any, width: Any, backwards: Any, spare: Any) -> None:
    """One line of pixels from lines of luma, blue and red. What does not fill sixteen goes by way of `spare`."""
    luma, blue, red = lines
    for x in range(0, width, WIDE):
        whole = x + WIDE <= width
        to = target + 3 * x if whole else spare
        if backwards:
            _bgr(luma + x, blue + x, red + x, to)
        else:
            _rgb(luma + x, blue + x, red + x, to)
        if not whole:
            copy_bytes(target + 3 * x, spare, 3 * (width - x))


@numba.njit(nogil=True)
def colour_line_of_pairs(lines: Any, target: Any, width: Any, backwards: Any, spare: Any) -> None:
    """As `colour_line`, with half as many samples of blue and red, each for two pixels."""
    luma, blue, red = lines
    for x in range(0, width, 2 * WIDE):
        whole = x + 2 * WIDE <= width
        to = target + 3 * x if whole else spare
        if backwards:
            _bgr_pairs(luma + x, blue + x // 2, red + x // 2, to)
        else:
            _rgb_pairs(luma + x, blue + x // 2, red + x // 2, to)
        if not whole:
            copy_bytes(target + 3 * x, spare, 3 * (width - x))


@numba.njit(nogil=True)
def close_edges(plane: Any, stride: Any, width: Any, height: Any) -> None:
    """Samples beside the first and behind the last column are theirs again, for the filter."""
    for y in range(height):
        row = plane + y * stride
        copy_bytes(row - 1, row, 1)
        copy_bytes(row + width, row + width - 1, 1)

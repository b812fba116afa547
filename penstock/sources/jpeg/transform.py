"""The inverse cosine transform of an 8 x 8 block, compiled: libjpeg's two integer forms, bit for bit.

Covers: the accurate transform (13-bit constants) and the fast one (8-bit constants on values scaled by the AAN
factors), each from 64 dequantised coefficients to 64 bytes; blocks of one value.
Does not cover: coefficients from bits (jpeg/entropy.py), colours (jpeg/colour.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from penstock.sources.jpeg.vector import (
    I8,
    I64,
    LANES,
    SHORTS,
    Vector,
    compiled,
    load,
    pick,
    store,
    turned,
    turned_bytes,
)

AAN_SCALES = np.array([1.0, 1.387039845, 1.306562965, 1.175875602, 1.0, 0.785694958, 0.541196100, 0.275899379])
"""What the fast transform leaves to the quantisation table, by row and by column."""

MOST = 8192
"""Eight times what a coefficient of eight-bit pixels can be. Beyond it, libjpeg-turbo's short cut for blocks with one
row of coefficients overflows, and pixels depend on the way they are computed."""


def fast_scales() -> np.ndarray:
    """The factors of the fast transform for all 64 coefficients, with 14 bits behind the point."""
    return np.floor(np.outer(AAN_SCALES, AAN_SCALES) * 16384 + 0.5).astype(np.int64).reshape(64)


def _accurate_line(d: list[Vector]) -> list[Vector]:
    """Eight one-dimensional transforms side by side; results have 13 more bits behind the point.

    Sums that libjpeg-turbo's vectors keep in 16 bits are kept so here too: a damaged file may overflow them.
    """
    sums = [(d[0] + d[4]).widened(), (d[0] - d[4]).widened(), (d[7] + d[3]).widened(), (d[5] + d[1]).widened()]
    d = [line.widened() for line in d]
    z1 = (d[2] + d[6]) * 4433
    even_2, even_3 = z1 - d[6] * 15137, z1 + d[2] * 6270
    even_0, even_1 = sums[0] << 13, sums[1] << 13
    even = [even_0 + even_3, even_1 + even_2, even_1 - even_2, even_0 - even_3]
    z1, z2, z3, z4 = d[7] + d[1], d[5] + d[3], sums[2], sums[3]
    z5 = (z3 + z4) * 9633
    z1, z2, z3, z4 = z1 * -7373, z2 * -20995, z5 - z3 * 16069, z5 - z4 * 3196
    odd = [d[1] * 12299 + z1 + z4, d[3] * 25172 + z2 + z3, d[5] * 16819 + z2 + z4, d[7] * 2446 + z1 + z3]
    return [e + o for e, o in zip(even, odd)] + [e - o for e, o in zip(even[::-1], odd[::-1])]


def _times(number: Vector, factor: int) -> Vector:
    """Times a factor with 8 bits behind the point, rounded down, as 16-bit multipliers do it."""
    return (number << 2).times(factor << 6, 16)


def _fast_line(d: list[Vector]) -> list[Vector]:
    """Eight one-dimensional transforms side by side, all in 16 bits."""
    both, other = d[0] + d[4], d[0] - d[4]
    sum_26 = d[2] + d[6]
    diff_26 = _times(d[2] - d[6], 362) - sum_26
    even = [both + sum_26, other + diff_26, other - diff_26, both - sum_26]
    z13, z10, z11, z12 = d[5] + d[3], d[5] - d[3], d[1] + d[7], d[1] - d[7]
    z5 = _times(z10 + z12, 473)
    odd_0 = z11 + z13
    odd_1 = _times(z10, -413) - z10 + z5 - odd_0
    odd_2 = _times(z11 - z13, 362) - odd_1
    odd_3 = z5 - _times(z12, 277) - odd_2
    odd = [odd_0, odd_1, odd_2, odd_3]
    return [e + o for e, o in zip(even, odd)] + [e - o for e, o in zip(even[::-1], odd[::-1])]


def _write(builder: Any, columns: list[Any], target: Any, stride: Any) -> None:
    """Columns of signed bytes around zero to rows of bytes around 128."""
    middle = ir.Constant(ir.VectorType(I8, 2 * LANES), [-128] * (2 * LANES))
    for i, pair in enumerate(turned_bytes(builder, columns)):
        pixels = builder.add(pair, middle)
        for half in (0, 1):
            row = pick(builder, pixels, pixels, list(range(half * LANES, (half + 1) * LANES)))
            store(builder, row, builder.add(target, builder.mul(stride, ir.Constant(I64, 2 * i + half))))


def _loaded(builder: Any, block: Any) -> list[Vector]:
    return [Vector(builder, load(builder, SHORTS, block, 2 * LANES * i)) for i in range(LANES)]


def _accurate(builder: Any, block: Any, target: Any, stride: Any, _: Any) -> None:
    lines = _accurate_line(_loaded(builder, block))
    halfway = turned(builder, [((line + (1 << 10)) >> 11).within(-32768, 32767, 16) for line in lines])
    lines = _accurate_line([Vector(builder, column) for column in halfway])
    _write(builder, [((line + (1 << 17)) >> 18).within(-128, 127, 8) for line in lines], target, stride)


def _fast(builder: Any, block: Any, target: Any, stride: Any, _: Any) -> None:
    halfway = turned(builder, [line.value for line in _fast_line(_loaded(builder, block))])
    lines = _fast_line([Vector(builder, column) for column in halfway])
    _write(builder, [(line >> 5).within(-128, 127, 8) for line in lines], target, stride)


def _clear(builder: Any, block: Any, *_: Any) -> None:
    for i in range(LANES):
        store(builder, ir.Constant(SHORTS, [0] * LANES), builder.add(block, ir.Constant(I64, 2 * LANES * i)))


accurate: Any = compiled(_accurate)
"""accurate(block, target, stride, 0): 64 int16 at an address to 8 rows of 8 bytes, `stride` bytes apart."""

fast: Any = compiled(_fast)
"""As `accurate`, on coefficients that carry `fast_scales`."""

clear: Any = compiled(_clear)
"""clear(block, 0, 0, 0): 64 int16 become zero."""


def _large(typing_context: Any, block: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shifted = Vector(builder, load(builder, SHORTS, args[0])) + MOST
        beyond = builder.icmp_unsigned(">=", shifted.value, ir.Constant(SHORTS, [2 * MOST] * LANES))
        return builder.icmp_unsigned("!=", builder.bitcast(beyond, I8), ir.Constant(I8, 0))

    return types.boolean(types.int64), generate


large: Any = intrinsic(_large)
"""large(block): whether a coefficient of the first row is beyond MOST."""

"""The characters of a cell all at once, in vectors. Importing this imports Numba.

Covers: where cells end, and the digits of a short plain number and what to divide them by, without a branch.
Does not cover: longer numbers and exponents (csv_number.py), lines, and cells that are no numbers (csv_numba.py).

Walking from digit to digit costs a branch that is guessed wrong in most cells, and no cell can be begun before the one
before it has ended. So the ends are found first, 64 bytes at a time. Then the sixteen bytes before an end are loaded
twice, the second time one byte earlier; the part behind the point is taken from the first and the part before it from
the second, and the digits stand together. (Measured, float32 numbers as text: 13 ns a cell by digits, 7 ns this way.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from penstock.sources.csv_number import intrinsic, types

STRIDE = 64
"""Bytes that are searched for ends at a time."""

WIDTH = 16
"""Bytes that are loaded before the end of a cell. It has to be shorter: then its digits are always an exact double."""

BEFORE = WIDTH + 1
"""How far from the start of the text a cell must end: this much is loaded, whether it belongs to the cell or not."""

_EARLIER, _OWN, _SCALE, _ENTRY = 0, WIDTH, 2 * WIDTH, 4 * WIDTH
"""Where in an entry of the table its two masks and its number are, and its size, which is a cache line."""

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _table() -> np.ndarray:
    """What to do with a cell by its sign, length and characters behind the last point seen (15: none was)."""
    table = np.zeros((2, WIDTH, WIDTH, _ENTRY), np.uint8)
    for minus, length, places in np.ndindex(2, WIDTH, WIDTH):
        entry, point = table[minus, length, places], places < length - minus
        digits = length - minus - point
        if digits < 1:  # there is none: the last byte is kept, which is something else and so gives the cell away
            point, digits = False, 1
        entry[_EARLIER : _EARLIER + point * (WIDTH - places)] = 255
        entry[_OWN + WIDTH - digits : _OWN + WIDTH] = 255
        entry[_SCALE : _SCALE + 8] = np.array([(1 - 2.0 * minus) * (10.0**places if point else 1.0)]).view(np.uint8)
    return table.reshape(-1)


TABLE = _table()
TABLE.setflags(write=False)


@intrinsic
def _ends(typingctx: Any, text: Any, at: Any, delimiter: Any) -> Any:
    """Which of the next 64 bytes end a cell, a bit each."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        some = _load(builder, STRIDE, builder.gep(view.data, [args[1]]))
        ends = [_splat(10, STRIDE, _I8), _splat(13, STRIDE, _I8), _spread(builder, args[2], STRIDE)]
        one, other, third = (builder.icmp_unsigned("==", some, end) for end in ends)
        return builder.bitcast(builder.or_(builder.or_(one, other), third), _I64)

    return types.uint64(text, types.int64, types.uint8), codegen


@intrinsic
def _set_bits(typingctx: Any, bits: Any) -> Any:
    """How many bits are set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def _short(typingctx: Any, text: Any, start: Any, end: Any, table: Any) -> Any:
    """The digits of a cell of 1 to 15 bytes as a number, what to divide it by (below zero for a minus), and whether the
    cell is a plain number at all."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text, table = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in ((signature.args[0], args[0]), (signature.args[3], args[3]))
        )
        return context.make_tuple(builder, signature.return_type, _cell(builder, text, args[1], args[2], table))

    found = types.Tuple((types.int64, types.float64, types.boolean))
    return found(text, types.int64, types.int64, table), codegen


def _cell(b: Any, text: Any, start: Any, end: Any, table: Any) -> list[Any]:
    """Writes the code of `_short`."""
    minus = b.zext(b.icmp_unsigned("==", b.load(b.gep(text, [start])), _I8(ord("-"))), _I64)
    last, earlier = (_load(b, WIDTH, b.gep(text, [b.sub(end, _I64(WIDTH + more))])) for more in (0, 1))
    row = b.add(b.sub(end, start), b.shl(minus, _I64(4)))
    entry = b.add(b.shl(row, _I64(4)), _places(b, last))
    entry = b.gep(table, [b.shl(entry, _I64(6))])
    early, own = (_load(b, WIDTH, b.gep(entry, [_I64(at)])) for at in (_EARLIER, _OWN))
    together = b.or_(b.and_(earlier, early), b.and_(last, b.not_(early)))
    digits = b.and_(b.xor(together, _splat(ord("0"), WIDTH, _I8)), own)
    wrong = b.bitcast(b.icmp_unsigned(">", digits, _splat(9, WIDTH, _I8)), _I16)
    scale = b.load(b.bitcast(b.gep(entry, [_I64(_SCALE)]), ir.DoubleType().as_pointer()))
    return [_joined(b, digits), scale, b.icmp_unsigned("==", wrong, _I16(0))]


def _places(b: Any, last: Any) -> Any:
    """Characters behind the last point of sixteen, 15 if there is none."""
    points = b.zext(b.bitcast(b.icmp_unsigned("==", last, _splat(ord("."), WIDTH, _I8)), _I16), _I32)
    top = b.or_(b.shl(points, _I32(WIDTH)), _I32(1 << WIDTH))
    return b.zext(b.ctlz(top, cgutils.true_bit), _I64)


def _joined(b: Any, digits: Any) -> Any:
    """The number that sixteen digits write: pairs, pairs of pairs and so on, the first counting most."""
    pairs = b.bitcast(digits, ir.VectorType(_I16, 8))
    # The product's upper byte is ten times the lower one plus the upper one: one instruction fewer than by parts.
    pairs = b.lshr(b.mul(pairs, _splat(10 * 256 + 1, 8, _I16)), _splat(8, 8, _I16))
    fours = _weighed(b, b.bitcast(pairs, ir.VectorType(_I32, 4)), 100, 16)
    eights = _weighed(b, b.bitcast(fours, ir.VectorType(_I64, 2)), 10_000, 32)
    left, right = (b.extract_element(eights, _I32(k)) for k in (0, 1))
    return b.add(b.mul(left, _I64(100_000_000)), right)


def _weighed(b: Any, numbers: Any, weight: int, half: int) -> Any:
    """The lower halves times a weight plus the upper halves."""
    kind, count = numbers.type.element, numbers.type.count
    lower = b.and_(numbers, _splat((1 << half) - 1, count, kind))
    return b.add(b.mul(lower, _splat(weight, count, kind)), b.lshr(numbers, _splat(half, count, kind)))


def _load(builder: Any, count: int, where: Any) -> Any:
    kind = ir.VectorType(_I8, count)
    return builder.load(builder.bitcast(where, kind.as_pointer()), align=1, typ=kind)


def _splat(value: int, count: int, kind: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, count), [value] * count)


def _spread(builder: Any, byte: Any, count: int) -> Any:
    one = builder.insert_element(ir.Constant(ir.VectorType(_I8, count), ir.Undefined), byte, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, count), [0] * count))

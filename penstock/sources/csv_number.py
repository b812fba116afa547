"""Decimal text to correctly rounded doubles, compiled (Eisel-Lemire). Importing this imports Numba.

Covers: the tables, the intrinsics, numbers of every shape (`_number`), and the plain ones fast (`_plain`).
Does not cover: cells and lines (csv_numba.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numba.core
import numba.extending
import numpy as np
from numba.core import cgutils

types: Any = numba.core.types

Compiled = Callable[..., Any]


def intrinsic(function: Compiled) -> Compiled:
    """Numba's decorator, whose own annotations hide what calling the result takes."""
    made: Compiled = numba.extending.intrinsic(function)
    return made


LOWEST, HIGHEST = -342, 308


def _powers_of_five() -> np.ndarray:
    """The top 128 bits of 5^q as two words, truncated above and rounded up below zero, as Eisel-Lemire asks."""
    table = np.zeros((HIGHEST - LOWEST + 1, 2), np.uint64)
    for q in range(LOWEST, HIGHEST + 1):
        five = 5 ** abs(q)
        if q < 0:
            bits = (five - 1).bit_length()
            value = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // five + 1
            value >>= max(0, value.bit_length() - 128)
        else:
            value = five << 128 >> five.bit_length() if five.bit_length() <= 128 else five >> (five.bit_length() - 128)
        table[q - LOWEST] = value >> 64, value & (2**64 - 1)
    return table


POWERS = _powers_of_five()
TENS = 10 ** np.arange(9, dtype=np.uint64)
EXACT_TENS = np.array([float(10**k) for k in range(23)])
"""Powers of ten that a double holds exactly."""


@intrinsic
def _leading_zeros(typingctx: Any, value: Any) -> Any:
    """Zero bits above the highest set one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], cgutils.false_bit)

    return types.uint64(types.uint64), codegen


@intrinsic
def _trailing_zeros(typingctx: Any, value: Any) -> Any:
    """Zero bits below the lowest set one; 64 for zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.uint64(types.uint64), codegen


@intrinsic
def _product(typingctx: Any, left: Any, right: Any) -> Any:
    """The 128-bit product of two words, high and low."""
    from llvmlite import ir

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        full = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(full, ir.Constant(wide, 64)), ir.IntType(64))
        low = builder.trunc(full, ir.IntType(64))
        return context.make_tuple(builder, signature.return_type, [high, low])

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), codegen


@intrinsic
def _as_double(typingctx: Any, bits: Any) -> Any:
    """The double with these bits."""
    from llvmlite import ir

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@intrinsic
def _as_bits(typingctx: Any, number: Any) -> Any:
    """The bits of a double."""
    from llvmlite import ir

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen


@intrinsic
def _eight_bytes(typingctx: Any, array: Any, at: Any) -> Any:
    """Eight bytes of a uint8 array as one little-endian word."""
    from llvmlite import ir

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        where = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(where, align=1)

    return types.uint64(array, types.int64), codegen


@intrinsic
def _byte(typingctx: Any, array: Any, at: Any) -> Any:
    """One byte of a uint8 array, without the check for a negative index that Numba adds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load(builder.gep(view.data, [args[1]]))

    return types.uint8(array, types.int64), codegen


@nb.njit(nogil=True, inline="always")
def _bits(mantissa: Any, power: Any, powers: Any) -> Any:
    """Bits of the double nearest to mantissa * 10^power, or all ones where that needs more precision."""
    unsettled = np.uint64(0xFFFFFFFFFFFFFFFF)
    if mantissa == 0:
        return np.uint64(0)
    if power < -300 or power > 280:
        return unsettled
    # Both exact, so one division rounds once (Clinger); a tenth faster than the product below.
    if mantissa <= np.uint64(9007199254740992) and -22 <= power <= 0:
        return _as_bits(np.float64(mantissa) / EXACT_TENS[-power])
    zeros = _leading_zeros(mantissa)
    word = mantissa << zeros
    high, low = _product(word, powers[power + 342, 0])
    if (high & np.uint64(0x1FF)) == np.uint64(0x1FF):
        more, _ = _product(word, powers[power + 342, 1])
        low += more
        if more > low:
            high += np.uint64(1)
        if low == unsettled and (power < -27 or power > 55):
            return unsettled
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    result = high >> shift
    exponent = ((217706 * power) >> 16) + 63 + np.int64(upper) - np.int64(zeros) + 1023
    if exponent <= 0 or exponent >= 2046:
        return unsettled
    halfway = low <= np.uint64(1) and -4 <= power <= 23 and (result & np.uint64(3)) == np.uint64(1)
    if halfway and (result << shift) == high:  # exactly between two doubles: to the even one
        result &= ~np.uint64(1)
    result += result & np.uint64(1)
    result >>= np.uint64(1)
    if result >= np.uint64(1 << 53):
        result = np.uint64(1 << 52)
        exponent += 1
    return (result & np.uint64((1 << 52) - 1)) | (np.uint64(exponent) << np.uint64(52))


@nb.njit(nogil=True, inline="always")
def _few_digits(text: Any, at: Any, end: Any, value: Any) -> Any:
    """As `_digits`, one by one: what stands before the point is mostly a digit or two."""
    while at < end:
        digit = np.uint8(_byte(text, at) - np.uint8(48))
        if digit > np.uint8(9):
            break
        value = value * np.uint64(10) + np.uint64(digit)
        at += 1
    return value, at


@nb.njit(nogil=True, inline="always")
def _leading_digits(word: Any) -> Any:
    """How many of eight bytes are digits before the first that is none, and their value, without a branch."""
    other = ((word + np.uint64(0x4646464646464646)) | (word - np.uint64(0x3030303030303030))) & np.uint64(
        0x8080808080808080
    )
    count = _trailing_zeros(other) >> np.uint64(3)
    # Two shifts: moving by 64 at once, for no digit at all, would be undefined.
    half = np.uint64(4) * (np.uint64(8) - count)
    word = ((word ^ np.uint64(0x3030303030303030)) << half) << half
    word = word * np.uint64(10) + (word >> np.uint64(8))
    left = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    right = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return count, (left + right) >> np.uint64(32)


@nb.njit(nogil=True, inline="always")
def _digits(text: Any, at: Any, end: Any, value: Any) -> Any:
    """Add a run of digits to `value`; returns it and where the run ended. Past 19 digits it wraps: the caller counts.

    Eight bytes at a time without a branch on how many of them are digits: those are mispredicted for each number.
    """
    while at + 8 <= end:
        count, found = _leading_digits(_eight_bytes(text, at))
        value = value * TENS[count] + found
        at += np.int64(count)
        if count < np.uint64(8):
            return value, at
    return _few_digits(text, at, end, value)


@nb.njit(nogil=True)
def _leading(text: Any, at: Any, end: Any) -> Any:
    """Zeros before the first digit that counts."""
    zeros: Any = 0
    while at < end and (_byte(text, at) == 48 or _byte(text, at) == 46):
        zeros += np.int64(_byte(text, at) == 48)
        at += 1
    return zeros


@nb.njit(nogil=True, inline="always")
def _number(text: Any, at: Any, end: Any, powers: Any) -> Any:
    """The bits of the number that starts at `at` and where it ends; all ones if it is not settled here."""
    unsettled = np.uint64(0xFFFFFFFFFFFFFFFF)
    minus = at < end and _byte(text, at) == 45
    sign = np.uint64(minus) << np.uint64(63)
    at += np.int64(minus)
    start = at
    value, at = _few_digits(text, at, end, np.uint64(0))
    count: Any = at - start
    power: Any = np.int64(0)
    if at < end and _byte(text, at) == 46:
        after = at + 1
        value, at = _digits(text, after, end, value)
        power = after - at
        count += at - after
    if count > 19:
        count -= _leading(text, start, at)
    if count == 0 or count > 19:
        return unsettled, at
    if at < end and (_byte(text, at) | 32) == 101:
        mark = at + 1
        minus = mark < end and _byte(text, mark) == 45
        if mark < end and (minus or _byte(text, mark) == 43):
            mark += 1
        exponent, at = _digits(text, mark, min(end, mark + 5), np.uint64(0))
        if at == mark:
            return unsettled, at
        power += -np.int64(exponent) if minus else np.int64(exponent)
    bits = _bits(value, power, powers)
    return (bits if bits == unsettled else bits | sign), at


@nb.njit(nogil=True, inline="always")
def _fits_float(bits: Any) -> Any:
    """Whether rounding this double again, to float32, cannot differ from rounding the text once."""
    exponent = (bits >> np.uint64(52)) & np.uint64(0x7FF)
    middle = (bits & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    inside = (exponent - np.uint64(898)) <= np.uint64(1149 - 898)
    return (inside & (not middle)) | (bits << np.uint64(1) == 0)


PLAIN_NBYTES = 40
"""What `_plain` may read from the start of a number; closer to the end of the text it must not be used."""


@nb.njit(nogil=True, inline="always")
def _plain(text: Any, start: Any) -> Any:
    """A number of at most 18 digits without exponent: its bits, whether it was one, and where it ended.

    The same for every length of fraction up to fifteen digits: a branch on that is mispredicted for each number, which
    costs more than parsing sixteen bytes always (measured: 1.13 against 0.68 us for a row of 40 numbers).
    """
    minus = np.int64(_byte(text, start) == np.uint8(45))
    at = start + minus
    digit = np.uint8(_byte(text, at) - np.uint8(48))
    good = digit <= np.uint8(9)
    value = np.uint64(digit)
    at += 1
    while at < start + 18:
        digit = np.uint8(_byte(text, at) - np.uint8(48))
        if digit > np.uint8(9):
            break
        value = value * np.uint64(10) + np.uint64(digit)
        at += 1
    whole = at - start
    good &= whole < 17
    if _byte(text, at) != np.uint8(46):
        good &= value <= np.uint64(9007199254740992)
        bits = _as_bits(np.float64(np.int64(value)))
        return bits | (np.uint64(minus) << np.uint64(63)), good, at
    at += 1
    count, found = _leading_digits(_eight_bytes(text, at))
    more, rest = _leading_digits(_eight_bytes(text, at + 8))
    full = count == np.uint64(8)
    more = more if full else np.uint64(0)
    rest = rest if full else np.uint64(0)
    value = (value * TENS[count] + found) * TENS[more] + rest
    places = count + more
    good &= (whole + np.int64(places) <= 18) & (value <= np.uint64(9007199254740992))
    # Both exact, so one division rounds once (Clinger).
    bits = _as_bits(np.float64(np.int64(value)) / EXACT_TENS[places])
    return bits | (np.uint64(minus) << np.uint64(63)), good, at + np.int64(places)

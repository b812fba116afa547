"""Bits to pixels, compiled: the Huffman codes of a baseline scan, dequantised and transformed block by block.

Covers: stuffed bytes taken out, look-up tables that give a coefficient for one look, restarts, planes of samples.
Does not cover: what stands before the bits (jpeg/frame.py), the transform (jpeg/transform.py), colours
(jpeg/colour.py).

Most of a JPEG's time goes here, and most of that into a chain in which each code must be known before the next can be
looked at. So a look at 11 bits yields run, value and length at once wherever code and value fit into them (nineteen of
twenty times); bits are refilled eight bytes at a time without a branch; stuffed bytes are taken out beforehand.
Any irregularity ends the attempt: the library then decodes the file, warns or refuses.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from penstock.core.raw_memory import load_i32, load_i64, load_u8, load_u64, store_i64, storer
from penstock.sources.jpeg.frame import DAMAGED, OK, OTHER
from penstock.sources.jpeg.transform import accurate, clear, fast, large
from penstock.sources.jpeg.vector import I16, I32, I64

LOOK = 11
"""Bits of one look. Tables must stay in the first-level cache beside everything else, which others may share."""

LOOKS = 1 << LOOK
LOOKS_A_REFILL = 56 // LOOK
LIMITS, OFFSETS, SYMBOLS = (4 * (LOOKS + n) for n in (0, 32, 64))
TABLE_BYTES = 4 * (LOOKS + 64 + 256)
"""A table: a 32-bit entry a look; where the codes of each length end and their symbols begin; the symbols.

An entry for AC coefficients has, from its low end: bits taken (4), steps in the block to the first and from there to
the second coefficient (6 each), their values (8 each). Where only one fits into the look, the second is the first
again, by a step of 0. One for DC has bits taken (4) and the value (16, at bit 16). Where no bits are taken, code and
value are longer than the look; then there are the symbol (at bit 8) and the length of its code (at bit 16) instead,
length 0 where that too is longer than a look.
"""

END = 63
"""The step that ends a block: past its last place from wherever it is taken."""

SLACK = 4096
"""Bytes behind the unstuffed bits that may be looked at: more than an MCU of the longest codes takes."""

ZEROS = 0xF0
"""The symbol for sixteen zeros."""

FACTORS = 160
"""Entries of a table of factors: a place in the block (its bytes from the start, low 8 bits) and what a coefficient
there is multiplied with (the 16 bits on top), in the order of the file. Those behind 63 lead to a place that nobody
reads: what a damaged file steps to is not looked at before it is stored."""

BLOCK_DC, BLOCK_AC, BLOCK_FACTORS, BLOCK_PREDICTION, BLOCK_PLANE, BLOCK_STRIDE, BLOCK_RIGHT, BLOCK_DOWN, BLOCK = range(
    9
)
"""What is known of each block of an MCU: addresses of tables and planes, and steps from one MCU to the next."""

store_u64: Any = intrinsic(storer(types.uint64, I64))
store_i16: Any = intrinsic(storer(types.int16, I16))
store_i32: Any = intrinsic(storer(types.int32, I32))


def _swap(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


def _low_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from numba.core import cgutils

        return builder.cttz(args[0], cgutils.false_bit)

    return types.uint64(types.uint64), generate


swapped: Any = intrinsic(_swap)
low_zeros: Any = intrinsic(_low_zeros)


@numba.njit(nogil=True)
def _entry(length: Any, symbol: Any, rest: Any, is_dc: Any) -> Any:
    """The entry for a look that begins with this code of this length, the `rest` of the look behind it."""
    size = symbol if is_dc else symbol & 15
    spare = LOOK - length
    if size > spare or (size > 7 and not is_dc):
        return (symbol << 8) | (length << 16)
    extra = rest >> (spare - size)
    value = extra - (1 << size) + 1 if size and extra < (1 << (size - 1)) else extra
    if is_dc:
        return (length + size) | (value << 16)
    step = (symbol >> 4) + 1 if size or symbol == ZEROS else END
    return (length + size) | (step << 4) | ((value & 255) << 16) | (value << 24)


@numba.njit(nogil=True)
def _pair(table: Any, singles: Any) -> None:
    """Let each look of `table` take a second coefficient where that stands in its bits too."""
    for look in range(LOOKS):
        entry = load_i32(singles + 4 * look)
        taken = entry & 15
        if taken != 0 and (entry >> 4) & 63 != END:
            after = load_i32(singles + 4 * ((look << taken) & (LOOKS - 1)))
            more = after & 15
            if more != 0 and taken + more <= LOOK:
                entry = (entry & 0xFF03F0) | (taken + more) | (((after >> 4) & 63) << 10) | ((after >> 24) << 24)
        store_i32(table + 4 * look, np.int32(entry))


@numba.njit(nogil=True)
def make_table(table: Any, singles: Any, counts: Any, symbols: Any, is_dc: Any) -> Any:
    """The look-up table of one Huffman table at an address; OK, OTHER or DAMAGED. `singles` is scratch for LOOKS."""
    entries = table if is_dc else singles
    for look in range(LOOKS):
        store_i32(entries + 4 * look, np.int32(0))
    code: Any = np.int64(0)
    place: Any = np.int64(0)
    for length in range(1, 17):
        count = np.int64(counts[length - 1])
        if code + count > (1 << length):
            return DAMAGED
        store_i32(table + OFFSETS + 4 * length, np.int32(place - code))
        for _ in range(count):
            symbol = np.int64(symbols[place])
            if symbol > 11 if is_dc else (symbol & 15) > 10:
                return OTHER  # no value of eight-bit pixels is that large; the refill counts on it
            store_i32(table + SYMBOLS + 4 * place, np.int32(symbol))
            for rest in range(1 << (LOOK - length) if length <= LOOK else 0):
                look = (code << (LOOK - length)) + rest
                store_i32(entries + 4 * look, np.int32(_entry(length, symbol, rest, is_dc)))
            code += 1
            place += 1
        store_i32(table + LIMITS + 4 * length, np.int32(code << (16 - length)))
        code <<= 1
    if not is_dc:
        _pair(table, singles)
    return OK


@numba.njit(nogil=True)
def unstuff(source: Any, end: Any, target: Any) -> Any:
    """Copy bits up to the next marker without stuffed zeros: where the copy ends, and where the marker is or `end`."""
    while source + 9 <= end:
        word = load_u64(source)
        store_u64(target, word)
        other = ~word
        marks = (other - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080)
        if marks == 0:
            source += 8
            target += 8
            continue
        here = np.int64(low_zeros(marks) >> np.uint64(3)) + 1
        source += here
        target += here
        if load_u8(source) != 0:
            return target - 1, source - 1
        source += 1
    while source < end:
        byte = load_u8(source)
        if byte == 255:
            if source + 1 == end or load_u8(source + 1) != 0:
                return target, source
            source += 1
        store_u64(target, np.uint64(byte))
        source += 1
        target += 1
    return target, end


@numba.njit(nogil=True)
def _code(table: Any, bits: Any) -> Any:
    """The code that stands on top, by its length: symbol and length in one number, 0 where there is no such code."""
    top = np.int64(bits >> np.uint64(48))
    for length in range(1, 17):
        if top < load_i32(table + LIMITS + 4 * length):
            place = (top >> (16 - length)) + load_i32(table + OFFSETS + 4 * length)
            return (load_i32(table + SYMBOLS + 4 * place) << 8) | (length << 16)
    return 0


@numba.njit(nogil=True, inline="always")
def _refilled(buffer: Any, have: Any, at: Any) -> Any:
    """At least 56 bits on top of the buffer, and where the next ones are. There is no branch that could be missed."""
    full = buffer | (swapped(load_u64(at)) >> have)
    return full, have | np.uint64(56), at + np.int64((np.uint64(63) - have) >> np.uint64(3))


@numba.njit(nogil=True, inline="always")
def _look(table: Any, buffer: Any) -> Any:
    return np.int64(load_i32(table + 4 * np.int64(buffer >> np.uint64(64 - LOOK))))


@numba.njit(nogil=True, inline="always")
def _put(block: Any, factors: Any, k: Any, value: Any) -> None:
    """Store the coefficient of place `k`, dequantised."""
    factor = load_i32(factors + 4 * k)
    store_i16(block + np.int64(factor & 255), np.int16(value * (factor >> 16)))


@numba.njit(nogil=True, inline="always")
def _signed(bits: Any, size: Any) -> Any:
    """The value whose `size` bits stand on top."""
    if size == 0:
        return np.int64(0)
    extra = np.int64(bits >> np.uint64(64 - size))
    return extra - (1 << size) + 1 if extra < (1 << (size - 1)) else extra


@numba.njit(nogil=True, inline="always")
def _first(table: Any, buffer: Any) -> Any:
    """The difference of a DC coefficient to the one before, and the bits it takes; 0 bits where it is damaged."""
    entry = _look(table, buffer)
    value, taken = entry >> 16, np.uint64(entry & 15)
    if taken == 0:
        entry = entry if entry else _code(table, buffer)
        symbol, length = (entry >> 8) & 255, entry >> 16
        value = _signed(buffer << np.uint64(length), symbol)
        taken = np.uint64(length + symbol if length else 0)
    return value, taken


@numba.njit(nogil=True, inline="always")
def _others(table: Any, factors: Any, block: Any, bits: Any) -> Any:
    """The AC coefficients of a block into their places: the bits that are left, and whether the block was sound."""
    buffer, have, at = bits
    k: Any = np.int64(0)
    first, step, entry, taken, before = k, k, k, np.uint64(0), buffer
    while k < 63:
        buffer, have, at = _refilled(buffer, have, at)
        for _ in range(LOOKS_A_REFILL):
            entry = _look(table, buffer)
            taken = np.uint64(entry & 15)
            if taken == 0:
                break
            before = buffer
            buffer <<= taken
            have -= taken
            step = (entry >> 10) & 63
            first = k + ((entry >> 4) & 63)
            k = first + step
            _put(block, factors, first, np.int64(np.int8(entry >> 16)))
            _put(block, factors, k, entry >> 24)
            if k > 62:
                break
        if taken == 0:
            buffer, have, at = _refilled(buffer, have, at)
            entry = entry if entry else _code(table, buffer)
            symbol, length = (entry >> 8) & 255, entry >> 16
            if length == 0:
                return (buffer, have, at), False
            size = symbol & 15
            step = (symbol >> 4) + 1 if size or symbol == ZEROS else END
            k += step
            _put(block, factors, k, _signed(buffer << np.uint64(length), size))
            buffer <<= np.uint64(length + size)
            have -= np.uint64(length + size)
    if taken != 0:
        if step == 0:
            step = (entry >> 4) & 63
        elif first >= 63:  # full with the first coefficient: the second is the next block's
            entry = _code(table, before)
            extra = taken - np.uint64((entry >> 16) + ((entry >> 8) & 15))
            buffer = before << (taken - extra)
            have += extra
            k, step = first, 0
    return (buffer, have, at), k == 63 or step == END


@numba.njit(nogil=True)
def read_run(state: Any, blocks: Any, block: Any, mcus: Any, quick: Any) -> Any:
    """Decode MCUs one after the other. `state` is: bits at, bits end, MCU column, MCU row, MCUs in a row, blocks."""
    at, end = load_i64(state), load_i64(state + 8)
    column, row, wide, count = load_i64(state + 16), load_i64(state + 24), load_i64(state + 32), load_i64(state + 40)
    buffer, have = np.uint64(0), np.uint64(0)
    for _ in range(mcus):
        for b in range(count):
            info = blocks + 8 * BLOCK * b
            clear(block, 0, 0, 0)
            buffer, have, at = _refilled(buffer, have, at)
            value, taken = _first(load_i64(info + 8 * BLOCK_DC), buffer)
            if taken == 0:
                return DAMAGED
            prediction, factors = load_i64(info + 8 * BLOCK_PREDICTION), load_i64(info + 8 * BLOCK_FACTORS)
            value += load_i64(prediction)
            store_i64(prediction, value)
            _put(block, factors, 0, value)
            rest = buffer << taken, have - taken, at
            (buffer, have, at), sound = _others(load_i64(info + 8 * BLOCK_AC), factors, block, rest)
            if not sound or large(block):
                return DAMAGED
            target = load_i64(info + 8 * BLOCK_PLANE)
            target += column * load_i64(info + 8 * BLOCK_RIGHT) + row * load_i64(info + 8 * BLOCK_DOWN)
            if quick:
                fast(block, target, load_i64(info + 8 * BLOCK_STRIDE), 0)
            else:
                accurate(block, target, load_i64(info + 8 * BLOCK_STRIDE), 0)
        column += 1
        if column == wide:
            column, row = 0, row + 1
        if at > end + 8:
            return DAMAGED
    left = 8 * (end - at) + np.int64(have)
    if not 0 <= left < 8:
        return DAMAGED
    store_i64(state + 16, column)
    store_i64(state + 24, row)
    return OK

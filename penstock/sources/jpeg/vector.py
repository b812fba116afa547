"""Many numbers at a time, for compiled kernels: vectors in LLVM's own words. Importing this imports Numba.

Covers: arithmetic on vectors while code is generated, loads, stores, picking elements, turning an 8 x 8 square.
Does not cover: what is computed (jpeg/transform.py, jpeg/colour.py).

The compiler does not reliably make vectors of short loops; written as vectors they always are ones, in whatever
instructions the processor has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 8
"""The side of a block."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
SHORTS = ir.VectorType(I16, LANES)


class Vector:
    """Numbers of 16 or 32 bits that will exist when the generated code runs."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _number(self, other: Any) -> Any:
        return (
            other.value if isinstance(other, Vector) else ir.Constant(self.value.type, [other] * self.value.type.count)
        )

    def __add__(self, other: Any) -> Vector:
        return Vector(self.builder, self.builder.add(self.value, self._number(other)))

    def __sub__(self, other: Any) -> Vector:
        return Vector(self.builder, self.builder.sub(self.value, self._number(other)))

    def __mul__(self, other: Any) -> Vector:
        return Vector(self.builder, self.builder.mul(self.value, self._number(other)))

    def __lshift__(self, bits: int) -> Vector:
        return Vector(self.builder, self.builder.shl(self.value, self._number(bits)))

    def __rshift__(self, bits: int) -> Vector:
        return Vector(self.builder, self.builder.ashr(self.value, self._number(bits)))

    def times(self, factor: int, bits: int) -> Vector:
        """16-bit numbers times a fraction, `factor` over 2^`bits`, rounded down."""
        return ((self.widened() * factor) >> bits).truncated()

    def widened(self) -> Vector:
        """16-bit numbers as 32-bit ones."""
        return Vector(self.builder, self.builder.sext(self.value, ir.VectorType(I32, self.value.type.count)))

    def truncated(self) -> Vector:
        """32-bit numbers as 16-bit ones, which they fit."""
        return Vector(self.builder, self.builder.trunc(self.value, ir.VectorType(I16, self.value.type.count)))

    def within(self, low: int, high: int, bits: int) -> Any:
        """As smaller numbers; what is beyond the bounds becomes the nearest."""
        builder, value = self.builder, self.value
        for bound, beyond in ((low, "<"), (high, ">")):
            limit = self._number(bound)
            value = builder.select(builder.icmp_signed(beyond, value, limit), limit, value)
        return builder.trunc(value, ir.VectorType(ir.IntType(bits), value.type.count))


def load(builder: Any, kind: Any, address: Any, at: int = 0) -> Any:
    """A vector from `at` bytes behind an address."""
    where = builder.inttoptr(builder.add(address, ir.Constant(I64, at)), kind.as_pointer())
    return builder.load(where, align=1, typ=kind)


def store(builder: Any, value: Any, address: Any) -> None:
    """A vector to any address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def pick(builder: Any, left: Any, right: Any, places: list[int]) -> Any:
    """Elements of two vectors by their places; the right one's places follow the left one's."""
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(places)), places))


def by_turns(builder: Any, left: Any, right: Any, half: int) -> Any:
    """The elements of one half of two vectors, by turns."""
    count = left.type.count
    start = half * count // 2
    return pick(builder, left, right, [k for i in range(start, start + count // 2) for k in (i, count + i)])


def turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Rows of an 8 x 8 square become its columns: three times, vectors four apart are taken by turns."""
    for _ in range(3):
        rows = [by_turns(builder, rows[i], rows[i + 4], half) for i in range(4) for half in (0, 1)]
    return rows


def turned_bytes(builder: Any, columns: list[Any]) -> list[Any]:
    """Columns of bytes become rows, as `turned`; each of the four vectors that come back holds two rows."""
    all_of_both = [k for i in range(LANES) for k in (i, LANES + i)]
    pairs = [pick(builder, columns[i], columns[i + 4], all_of_both) for i in range(4)]
    for _ in range(2):
        pairs = [by_turns(builder, pairs[i], pairs[i + 2], half) for i in (0, 1) for half in (0, 1)]
    return pairs


def compiled(how: Any) -> Any:
    """An intrinsic of four addresses that generates its code by `how(builder, *addresses)` and returns nothing."""

    def typed(typing_context: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            how(builder, *args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return intrinsic(typed)

"""Numbers at addresses, for compiled kernels: loads, stores and copies. Importing this imports Numba.

Covers: unaligned access to memory that the caller has checked is there.
Does not cover: what the bytes mean.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Number = Any
"""A number inside compiled code: Numba infers its width, which Python's types cannot say."""


def loader(kind: Any, bits: Any) -> Any:
    """An intrinsic that loads one number from an address."""

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], bits.as_pointer()), align=1, typ=bits)

        return kind(types.int64), generate

    return typed


def storer(kind: Any, bits: Any) -> Any:
    """An intrinsic that stores one number at an address."""

    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], bits.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    return typed


# Kernels pass addresses, not arrays, from function to function: an array argument is reference counted at every call,
# which made parsing ten times slower. The loads are also right at any alignment, which indexing is not.
load_u8: Any = intrinsic(loader(types.uint8, ir.IntType(8)))
load_u32: Any = intrinsic(loader(types.uint32, ir.IntType(32)))
load_u64: Any = intrinsic(loader(types.uint64, ir.IntType(64)))
load_i64: Any = intrinsic(loader(types.int64, ir.IntType(64)))
load_i32: Any = intrinsic(loader(types.int32, ir.IntType(32)))
load_f64: Any = intrinsic(loader(types.float64, ir.DoubleType()))
load_f32: Any = intrinsic(loader(types.float32, ir.FloatType()))
store_f32: Any = intrinsic(storer(types.float32, ir.FloatType()))
store_i64: Any = intrinsic(storer(types.int64, ir.IntType(64)))


_memcpy: Any = cgutils.raw_memcpy
_declared: Any = cgutils.get_or_insert_function


def _copy(typing_context: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """memcpy from address to address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        pointers = [builder.inttoptr(a, byte) for a in args[:2]]
        _memcpy(builder, pointers[0], pointers[1], args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy_bytes: Any = intrinsic(_copy)


def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line of an address that will be read soon; any address will do."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = _declared(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(function, [builder.inttoptr(args[0], byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Any = intrinsic(_prefetch)

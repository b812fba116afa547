"""CRC-32C as TFRecord files carry it, for compiled kernels.

Covers: the checksum of a stretch of a byte array, with the processor's own instruction where it has one (about
10 GB/s on one core) and eight tables otherwise (about 2 GB/s).
Does not cover: what the bytes mean (sources/tfrecord_kernel.py).

Numba is imported here and in the kernels only, and the kernels only where TFRecord files are read or written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.errors import MissingExtra

try:
    import llvmlite.binding as llvm
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from penstock.core.raw_memory import Number, load_u8, load_u64
    from penstock.sources.compile_notice import tell_when_compiling
except ImportError as error:
    raise MissingExtra(what="Reading TFRecord files", extra="tfrecord") from error

tell_when_compiling("the TFRecord parser", *(f"penstock.sources.{name}" for name in ("tfrecord_kernel", "list_kernel")))

POLYNOMIAL = 0x82F63B78

_CRC_INSTRUCTION = {"sse4.2": "llvm.x86.sse42.crc32.64.64", "crc": "llvm.aarch64.crc32cx"}
"""LLVM's name for the instruction that adds 8 bytes to a CRC-32C, by the processor feature that brings it."""


def _instruction() -> str | None:
    features = llvm.get_host_cpu_features()
    return next((name for feature, name in _CRC_INSTRUCTION.items() if features.get(feature)), None)


INSTRUCTION = _instruction()


def _crc_step(typing_context: Any, crc: Any, word: Any) -> Any:
    """One step of the processor's CRC-32C over 8 bytes. Both processors' forms are called with 64 bits here."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = INSTRUCTION is not None and "x86" in INSTRUCTION
        state = ir.IntType(64 if wide else 32)
        function = builder.module.declare_intrinsic(
            INSTRUCTION or "", fnty=ir.FunctionType(state, [state, ir.IntType(64)])
        )
        given = args[0] if wide else builder.trunc(args[0], state)
        made = builder.call(function, [given, args[1]])
        return made if wide else builder.zext(made, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_crc_instruction: Any = intrinsic(_crc_step)


def _tables() -> np.ndarray:
    """Table k row b: what byte b does to a checksum that k more bytes follow."""
    table = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table[0, byte] = crc
    for k in range(1, 8):
        table[k] = (table[k - 1] >> 8) ^ table[0, table[k - 1] & 0xFF]
    return table


TABLES = _tables()


@numba.njit(nogil=True, cache=True, inline="always")
def _step_tables(crc: Number, word: Number) -> Number:
    w = word ^ crc
    return np.uint64(
        TABLES[7, w & 0xFF]
        ^ TABLES[6, (w >> np.uint64(8)) & 0xFF]
        ^ TABLES[5, (w >> np.uint64(16)) & 0xFF]
        ^ TABLES[4, (w >> np.uint64(24)) & 0xFF]
        ^ TABLES[3, (w >> np.uint64(32)) & 0xFF]
        ^ TABLES[2, (w >> np.uint64(40)) & 0xFF]
        ^ TABLES[1, (w >> np.uint64(48)) & 0xFF]
        ^ TABLES[0, (w >> np.uint64(56)) & 0xFF]
    )


@numba.njit(nogil=True, cache=True, inline="always")
def _step_processor(crc: Number, word: Number) -> Number:
    return _crc_instruction(crc, word)


_step = _step_tables if INSTRUCTION is None else _step_processor


@numba.njit(nogil=True, cache=True)
def crc_at(start: Number, length: Number) -> Number:
    """CRC-32C of `length` bytes from the address `start`; the caller has checked that they are there."""
    crc: Number = np.uint64(0xFFFFFFFF)
    place = start
    whole = start + (length & ~7)
    while place < whole:
        crc = _step(crc, load_u64(place))
        place += 8
    end = start + length
    while place < end:
        crc = np.uint64(TABLES[0, (crc ^ np.uint64(load_u8(place))) & np.uint64(0xFF)]) ^ (crc >> np.uint64(8))
        place += 1
    return np.uint32(crc ^ np.uint64(0xFFFFFFFF))


@numba.njit(nogil=True, cache=True)
def masked_crc_at(start: Number, length: Number) -> Number:
    """The checksum as TFRecord stores it: rotated and offset, so that a checksum of checksums stays sound."""
    crc: Number = np.uint32(crc_at(start, length))
    turned = np.uint32((crc >> np.uint32(15)) | (crc << np.uint32(17)))
    return np.uint32(turned + np.uint32(0xA282EAD8))


@numba.njit(nogil=True, cache=True)
def crc32c(data: np.ndarray) -> Number:
    """CRC-32C of a byte array (see `byte_array`)."""
    return crc_at(data.ctypes.data, len(data))


@numba.njit(nogil=True, cache=True)
def masked_crc32c(data: np.ndarray) -> Number:
    """Masked CRC-32C of a byte array (see `byte_array`)."""
    return masked_crc_at(data.ctypes.data, len(data))


def byte_array(data: bytes | bytearray | memoryview | np.ndarray) -> np.ndarray:
    """The bytes as a read-only array: always the same type, so that each kernel is compiled once."""
    array = data.view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array

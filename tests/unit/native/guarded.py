"""Memory between two pages that nobody may touch: a kernel that reads or writes one byte outside dies at once."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Literal

import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NONE = 0


def _forbid(at: int) -> None:
    if _libc.mprotect(at, _PAGE, _NONE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def guarded(data: bytes | int, side: Literal["start", "end"] = "end") -> np.ndarray:
    """The bytes (or so many zeros) as an array whose start or end touches a forbidden page; both sides have one."""
    text = data if isinstance(data, bytes) else bytes(data)
    inside = max(1, -(-len(text) // _PAGE)) * _PAGE
    room = np.frombuffer(mmap.mmap(-1, inside + 2 * _PAGE), np.uint8)  # the array keeps the mapping
    first = room.ctypes.data
    _forbid(first)
    _forbid(first + _PAGE + inside)
    at = _PAGE if side == "start" else _PAGE + inside - len(text)
    out = room[at : at + len(text)]
    out[:] = np.frombuffer(text, np.uint8)
    return out

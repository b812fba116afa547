"""NumPy arrays in memory that is used again: the allocator of native/array_memory.c, for one thread at a time.

Covers: `recycled`, inside of which this thread's new arrays come from it; how many idle bytes are kept.
Does not cover: who pays for idle bytes (engine/buffers/array_memory.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from penstock.native.library import library

_SET_HANDLER = 304
"""Where PyDataMem_SetHandler stands in NumPy's table of functions, which only grows (NumPy 1.22 and later)."""

_HANDLER_NAME = b"mem_handler"
"""What NumPy calls the capsule of a handler."""


@cache
def _parts() -> tuple[Callable[[Any], Any], Any, Callable[[int], int]]:
    """NumPy's function that sets a thread's handler, our handler in its capsule, and the one that bounds idle bytes."""
    api = ctypes.pythonapi
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", api)
    )
    table = pointer(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
    functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
    handler = library().plain("array_handler", ctypes.c_void_p, ())
    keep = library().plain("array_keep", ctypes.c_int64, (ctypes.c_int64,))
    return set_handler, capsule(handler(), _HANDLER_NAME, None), keep


@contextmanager
def recycled() -> Iterator[None]:
    """New arrays of this thread come from recycled memory inside the block; they may live on after it."""
    set_handler, ours, _ = _parts()
    before = set_handler(ours)
    try:
        yield
    finally:
        set_handler(before)


def keep_idle(nbytes: int) -> int:
    """Keep at most so many bytes that no array uses, in the whole process; returns how many are kept now."""
    return int(_parts()[2](nbytes))

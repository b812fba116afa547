"""The library of compiled kernels: loaded once, with the best instructions that this processor has.

Covers: finding and loading it, its version, levels of instructions, calling a kernel without the GIL.
Does not cover: what kernels do (the other files of this room), building it (native/build.py at the project's root).

`PENSTOCK_KERNELS=baseline` (or avx2, avx512; crc on ARM) forces a level; every level gives the same bits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.errors import PenstockError

ABI = 2
"""Raised whenever a kernel's arguments or meaning change; PS_ABI in native/kernels.h is the same number."""

LEVEL_VARIABLE = "PENSTOCK_KERNELS"
PATH_VARIABLE = "PENSTOCK_KERNELS_PATH"
"""Another library file, such as the sanitizer build."""

ADDRESS, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
UINT8, UINT32, FLOAT32, FLOAT64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_float, ctypes.c_double
"""Types of arguments. An ADDRESS takes an integer, None (NULL) or a bytes object."""


class KernelsMissing(PenstockError):
    """The compiled kernels cannot be loaded; the message says what to do."""


class Library:
    """The loaded file, and the level whose kernels are used."""

    def __init__(self, path: Path, level: str | None = None) -> None:
        if not path.exists():
            raise KernelsMissing(
                f"penstock's compiled kernels are not there ({path}). "
                f"Install a wheel (pip install penstock), or run `make native` in the clone."
            )
        try:
            self._file = ctypes.CDLL(str(path))
            found = int(self._file.ps_abi())
        except (OSError, AttributeError) as error:
            raise KernelsMissing(f"penstock's compiled kernels cannot be loaded ({path}): {error}") from error
        if found != ABI:
            raise KernelsMissing(
                f"penstock's compiled kernels have version {found}, this penstock needs {ABI} ({path}). "
                f"Reinstall penstock, or run `make native` in the clone."
            )
        self._file.ps_levels.restype = ctypes.c_char_p
        self.path, self.levels = path, str(self._file.ps_levels().decode()).split()
        self.level = level or self.levels[-1]
        if self.level not in self.levels:
            raise KernelsMissing(
                f"{LEVEL_VARIABLE}={self.level}: this processor has kernels for {', '.join(self.levels)}."
            )

    def function(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        """The kernel `name` at the chosen level; calling it releases the GIL."""
        try:
            # Not by attribute: that would give every caller the same object, and its types are set here.
            found = self._file[f"ps_{name}_{self.level}"]
        except AttributeError as error:
            raise KernelsMissing(
                f"penstock's compiled kernels lack {name} at the level {self.level} ({self.path}). "
                f"Reinstall penstock, or run `make native` in the clone."
            ) from error
        found.restype, found.argtypes = result, arguments
        return found

    def plain(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        """A function that is there once, not once for each level."""
        found = self._file[f"ps_{name}"]
        found.restype, found.argtypes = result, arguments
        return found

    @property
    def compiler(self) -> str:
        """What the library was built with, for reports."""
        return str(self.plain("compiler", ctypes.c_char_p, ())().decode()).split(" (")[0]


_lock = threading.Lock()
_library: Library | None = None
_kernels: list[Kernel] = []


def library() -> Library:
    """The library of this process; loaded at the first call."""
    global _library
    with _lock:
        if _library is None:
            path = os.environ.get(PATH_VARIABLE)
            here = Path(path) if path else Path(__file__).with_name("_kernels.so")
            _library = Library(here, os.environ.get(LEVEL_VARIABLE) or None)
        return _library


class Kernel:
    """One kernel, looked up at its first call.

    `kernel = Kernel("gather_copy", None, ADDRESS, INT64)`, then `kernel(address(array), len(array))`.
    """

    __slots__ = ("_arguments", "_found", "_name", "_result")

    def __init__(self, name: str, result: Any, *arguments: Any) -> None:
        self._name, self._result, self._arguments = name, result, arguments
        self._found: Any = None
        _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        found = self._found
        if found is None:
            found = self._found = library().function(self._name, self._result, self._arguments)
        return found(*arguments)

    def forget(self) -> None:
        """Look the kernel up again at the next call."""
        self._found = None


@contextmanager
def forced(level: str) -> Iterator[None]:
    """Use the kernels of one level meanwhile, in all threads: for tests that compare levels."""
    global _library
    kept = library()
    _library = Library(kept.path, level)
    try:
        for kernel in _kernels:
            kernel.forget()
        yield
    finally:
        _library = kept
        for kernel in _kernels:
            kernel.forget()


_number_at = ctypes.c_size_t.from_address
_DATA = object.__basicsize__
"""Where a NumPy array keeps the address of its first byte: behind the head of every object (NumPy's C interface)."""


def address(array: np.ndarray) -> int:
    """Where an array's first byte lies; the caller keeps the array, and has checked that it is contiguous.

    Five times as fast as asking the array, which makes a dictionary; kernels are called for single pictures.
    """
    return _number_at(id(array) + _DATA).value

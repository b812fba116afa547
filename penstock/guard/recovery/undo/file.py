"""Old values in a file: a copy of the training state that takes no memory.

Covers: writing arrays to an unnamed file on disk and reading them back into place.
Does not cover: when memory is so short that this is worth its time (guard/recovery/ladder.py).

The file is written with `pwrite`, not mapped: a full disk is an error, where a mapping would end the process. What the
system keeps of it in its page cache gives way under pressure.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import IO

import numpy as np

_DISKS = ("/var/tmp",)
"""/tmp may be in memory; these by convention are not."""
_AT_ONCE = 16 * 2**20


class UndoFile:
    """Bytes of some arrays in a file that has no name and goes with its process."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def save(self, arrays: Sequence[np.ndarray], *, at: int = 0) -> None:
        """Write the arrays one after the other from a place on. They are one-dimensional views of bytes."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-undo-", dir=_folder(), buffering=0)  # noqa: SIM115
        number = self._file.fileno()
        for array in arrays:
            for start in range(0, len(array), _AT_ONCE):
                at += _write(number, array[start : start + _AT_ONCE], at)

    def load(self, arrays: Sequence[np.ndarray], *, at: int = 0) -> None:
        """Read the bytes back into arrays of the same sizes."""
        assert self._file is not None
        number = self._file.fileno()
        for array in arrays:
            done = 0
            while done < len(array):
                count = os.preadv(number, [array[done : done + _AT_ONCE].data], at)
                if count == 0:
                    raise EOFError("the file of old values is shorter than what was written to it")
                done, at = done + count, at + count

    def close(self) -> None:
        """Give the disk back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array as bytes, not copied."""
    return array.reshape(-1).view(np.uint8)


def _write(number: int, array: np.ndarray, at: int) -> int:
    view, done = array.data, 0
    while done < len(view):
        done += os.pwrite(number, view[done:], at + done)
    return done


def _folder() -> str | None:
    return next((folder for folder in _DISKS if os.access(folder, os.W_OK)), None)

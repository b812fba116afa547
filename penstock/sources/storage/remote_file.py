"""Remote files as file objects.

Covers: seeking, reading ahead the further the longer a file is read in sequence.
Does not cover: asking the store (remote.py).
"""

from __future__ import annotations

import errno
import io
from typing import Any, BinaryIO, cast

from penstock.core.errors import DataError
from penstock.sources.storage.remote import file_size, read_range

SMALLEST_AHEAD, LARGEST_AHEAD = 64 * 1024, 8 * 1024 * 1024
"""A remote file read in sequence fetches twice as much each time, within these bounds."""


def open_file(url: str) -> BinaryIO:
    """A seekable file object over ranged reads."""
    return cast(BinaryIO, io.BufferedReader(RemoteFile(url, file_size(url)), SMALLEST_AHEAD))


class RemoteFile(io.RawIOBase):
    """A remote file that fetches further ahead the longer it is read in sequence."""

    def __init__(self, url: str, nbytes: int) -> None:
        self.name = url
        self.nbytes = nbytes
        self._at = 0
        self._held = b""
        self._held_at = 0
        self._ahead = SMALLEST_AHEAD

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.nbytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, f"Cannot seek before the start of {self.name}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._at - self._held_at
        if not 0 <= start < len(self._held):
            self._fetch(len(view))
            start = 0
        count = min(len(view), len(self._held) - start)
        view[:count] = memoryview(self._held)[start : start + count]
        self._at += count
        return count

    def _fetch(self, wanted: int) -> None:
        sequential = self._at == self._held_at + len(self._held)
        self._ahead = min(self._ahead * 2, LARGEST_AHEAD) if sequential else SMALLEST_AHEAD
        length = max(0, min(max(wanted, self._ahead), self.nbytes - self._at))
        self._held = b""  # let go of the old bytes before the new ones arrive
        self._held = read_range(self.name, self._at, length)
        self._held_at = self._at
        if length and len(self._held) < length and self._at + len(self._held) < self.nbytes:
            raise DataError(f"{self.name} became shorter while it was read.")

    def close(self) -> None:
        self._held = b""
        super().close()

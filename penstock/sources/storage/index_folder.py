"""Where indexes are kept between runs.

Covers: choosing a folder that can be written, writing a file in it all at once or not at all, clearing what is old.
Does not cover: what is in the files (sources/listing/packed_names.py and the readers), caching samples (engine/cache).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

from penstock.core.durable import replace_durably
from penstock.core.errors import DataError, PenstockError
from penstock.core.user.folder import user_folder

KEPT_DAYS = 30
"""An index that nothing has opened for so long is removed."""


def cache_folder() -> str:
    """The folder for indexes."""
    return user_folder()


class Partial:
    """A file in the making."""

    def __init__(self, folder: str, file: BinaryIO, path: str) -> None:
        self.file, self._folder, self._path = file, folder, path

    def contents(self) -> bytes:
        """What was written so far."""
        self.file.flush()
        with open(self._path, "rb") as file:
            return file.read()

    def keep(self, name: str) -> str:
        """Give the complete file its name; the path."""
        self.file.flush()
        path = os.path.join(self._folder, name)
        replace_durably(self._path, path)
        return path


@contextmanager
def partial(folder: str) -> Iterator[Partial]:
    """A file that is gone after the block unless it was kept in it."""
    try:
        handle, path = tempfile.mkstemp(prefix=".partial-", dir=folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield Partial(folder, cast(BinaryIO, file), path)
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise _unwritable(folder, error) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


@contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file to write that appears under `path` only when the block ends well."""
    with partial(os.path.dirname(path)) as kept:
        yield kept.file
        kept.keep(os.path.basename(path))


def _unwritable(folder: str, error: OSError) -> DataError:
    return DataError(
        f"An index could not be kept in {folder!r}: {error.strerror or error}. "
        f"Set PENSTOCK_CACHE to a folder with room that can be written."
    )


def clear_old(folder: str, *, older_than_s: float = KEPT_DAYS * 86400) -> int:
    """Remove our files that have not been used for long; how many were removed."""
    removed = 0
    before = time.time() - older_than_s
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith((".partial-", "listing-", "spans-")):
                continue
            try:
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)
                    removed += 1
            except FileNotFoundError:
                continue  # another process was faster
    return removed

"""Files that survive a power cut, and files that only their owner may read.

Covers: renaming a finished file into place, folders and files of a run.
Does not cover: what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def replace_durably(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a finished file into place: its bytes are on disk before, its name after."""
    handle = os.open(source, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(source, target)
    sync_folder(Path(target).parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Put the names in a folder on disk. Windows has no such call."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def private_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there, closed to others; those above it are made as usual."""
    path = Path(folder)
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return path


@contextmanager
def private_files() -> Iterator[None]:
    """All that this process and those that it starts make meanwhile is closed to others, whoever makes it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_private(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file that is whole or not there, and that others may not read."""
    fresh = Path(f"{os.fspath(path)}.new")
    fresh.unlink(missing_ok=True)  # an older one may have been open to others
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w", encoding="utf-8") as file:
        file.write(text)
    replace_durably(fresh, path)

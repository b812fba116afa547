"""Local folders and globs: every name that is wanted, without a Python object kept for any.

Covers: one folder's names and subfolders, folders below a folder, what a glob means.
Does not cover: what becomes of the names (shard_files.py, sample_files.py), stores (remote_walk.py).

Names are bytes, as the file system has them. A folder that cannot be read is an error: its files would be missing
without a word otherwise.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator

from penstock.core.errors import NotFound

Wanted = Callable[[bytes], object]
"""Whether the name of a file is wanted."""

Identity = tuple[int, int]
"""Which folder it is, whatever it is called: device and inode."""

_HIDDEN = b"._"


class Folder:
    """One folder. Its time is read before its names: a file added meanwhile makes a list out of date, not wrong."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        self.identity: Identity = (status.st_dev, status.st_ino)
        self.mtime_ns = status.st_mtime_ns
        self.folders: list[bytes] = []
        """Folders in it that are not hidden, known once its names have been read."""

    def names(self, wanted: Wanted) -> Iterator[bytes]:
        """Files in it, in the order of the file system. Once only."""
        folders = self.folders
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir():
                        if name[0] not in _HIDDEN:
                            folders.append(name)
                    elif wanted(name):
                        yield name
        except OSError as error:
            raise _unreadable(self.path, error) from error


def _unreadable(path: bytes, error: OSError) -> NotFound:
    return NotFound(f"Folder {os.fsdecode(path)!r} cannot be read: {error.strerror}.")


def below(root: bytes, top: bytes = b"", above: tuple[Identity, ...] = ()) -> Iterator[tuple[bytes, Folder]]:
    """The folder `top` of a root and all folders below it, in the order of their paths; the caller reads their names.

    Each comes with its path below the root. A link back to a folder above (those in `above` included) is not followed.
    """
    stack = [(top, above)]
    while stack:
        key, parents = stack.pop()
        folder = Folder(os.path.join(root, key) if key else root)
        if folder.identity in parents:
            continue
        yield key, folder
        around = (*parents, folder.identity)
        stack += [(os.path.join(key, name), around) for name in sorted(folder.folders, reverse=True)]


def visible(suffixes: tuple[str, ...] | None) -> Wanted:
    """Names that end in one of the suffixes, in whatever case, and do not begin with a dot or an underscore."""
    if not suffixes:
        return lambda name: name[0] not in _HIDDEN
    endings, ending = tuple(map(os.fsencode, suffixes)), "|".join(re.escape(suffix) for suffix in suffixes)
    match = re.compile(rf"[^._].*(?:{ending})\Z".encode("utf-8", "surrogateescape"), re.IGNORECASE | re.DOTALL).match
    # Asking for the usual spelling first costs a third of asking the pattern.
    return lambda name: (name.endswith(endings) and name[0] not in _HIDDEN) or match(name)


def split_glob(pattern: str) -> tuple[list[str], Wanted]:
    """The folders that a glob looks into, as `glob` spells them, and which of their names it means.

    `glob` finds the folders only: it would list the files.
    """
    head, tail = os.path.split(pattern)
    if tail == "**":
        head, tail = pattern, "*"
    lead = os.path.join(head, "") if head else ""
    folders = set(glob.glob(lead, recursive=True)) if glob.has_magic(lead) else {lead}
    if set(head.split("/")) == {"**"}:
        folders.add("")  # "**" may be no folder at all, which `glob` has no name for here
    start = r"\A" if tail.startswith(".") else r"\A(?!\.)"  # as in a shell, "*" does not match hidden names
    match = re.compile(start + fnmatch.translate(tail)).match
    # Decoded: "?" is one letter, however many bytes it takes.
    return sorted(f for f in folders if not f or os.path.isdir(f)), lambda name: match(os.fsdecode(name))

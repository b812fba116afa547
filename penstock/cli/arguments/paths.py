"""Paths on the command line, checked before anything large is loaded.

Covers: whether data is there, whether module.py:function names a file.
Does not cover: what the data is (read/recognise/formats.py), running the file (core/user/code.py).
"""

from __future__ import annotations

import glob
import os

from penstock.core.errors import InvalidInput, NotFound


def check_there(data: str) -> None:
    """Refuse a local path or pattern that names nothing. Addresses are left to those who open them."""
    if "://" in data or os.path.exists(data):
        return
    if not glob.has_magic(data):
        raise NotFound(f"{data!r} does not exist.")
    if next(glob.iglob(data, recursive=True), None) is None:
        raise NotFound(f"No file matches {data!r}.")


def check_code(what: str, text: str, does: str) -> None:
    """Refuse what is not `module.py:function` of a file that is there. The file is not run."""
    name, colon, function = text.rpartition(":")
    if not (colon and name.endswith(".py") and function):
        bare = text.rstrip(":")
        example = f"{bare}:build" if bare.endswith(".py") else "module.py:build"
        raise InvalidInput(f"{what} {text}: name the function that {does}, as in {example}.")
    if not os.path.exists(name):
        raise NotFound(f"{what}: there is no file {name}.")

"""A function out of a user's Python file or package.

Covers: `module.py:build`, with neighbours of the file importable by it, then and later; `package.module:build`.
Does not cover: what is done with the function.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.core.errors import InvalidInput, NotFound

_MOST_TEXT = 400
"""Characters of an exception's text that a message repeats: frameworks write pages."""


def load_function(text: str) -> Callable[..., Any]:
    """The function that `module.py:name` or `package.module:name` stands for."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidInput(f"{text!r} does not name a function: write module.py:function.")
    return function_of(load_module(Path(place)) if place.endswith(".py") else _imported(place), name)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFound(f"There is no module {name!r}: {error}.") from error


def load_module(path: Path) -> ModuleType:
    """A Python file as a module of its own, run afresh at each call."""
    if not path.exists():
        raise NotFound(f"There is no Python file {path}.")
    place = path.resolve()
    # Two files of one name in different folders are two modules: classes are pickled by the module's name.
    title = f"_penstock_user_{path.stem}_{hashlib.blake2b(bytes(place), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(title, place)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    folder = str(place.parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may exit
        del sys.modules[title]
        raise InvalidInput(f"{path}{_line(error, place)} cannot be run: {in_one_line(error)}") from error
    finally:
        sys.path.remove(folder)
    # Behind everything else it stays: functions of the file may import neighbours when called, in child processes too.
    if folder not in sys.path:
        sys.path.append(folder)
    return module


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of a module that `load_module` gave."""
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidInput(f"{module.__file__ or module.__name__} has no function {name!r}.")
    return found  # type: ignore[no-any-return]


def in_one_line(error: BaseException) -> str:
    """An exception's type and the beginning of what it says."""
    text = " ".join(str(error).split())
    short = text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


def _line(error: BaseException, place: Path) -> str:
    """Where in the user's file it went wrong, as ", line 3,"; empty where that is unknown."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}," if error.lineno and error.filename == str(place) else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
    return f", line {lines[-1]}," if lines and lines[-1] else ""

"""A function out of a user's Python file.

Covers: `module.py:build`, with neighbours of the file importable by it, then and later.
Does not cover: what is done with the function.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.core.errors import InvalidInput, NotFound


def load_function(text: str) -> Callable[..., Any]:
    """The function that `module.py:name` stands for."""
    file, _, name = text.rpartition(":")
    return function_of(load_module(Path(file)), name)


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
    except Exception as error:
        del sys.modules[title]
        raise InvalidInput(f"{path}{_line(error, place)} cannot be run: {type(error).__name__}: {error}") from error
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
        raise InvalidInput(f"{module.__file__} has no function {name!r}.")
    return found  # type: ignore[no-any-return]


def _line(error: Exception, place: Path) -> str:
    """Where in the user's file it went wrong, as ", line 3,"; empty where that is unknown."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}," if error.lineno and error.filename == str(place) else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
    return f", line {lines[-1]}," if lines and lines[-1] else ""

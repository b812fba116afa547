"""A function out of a user's Python file, called with what it asks for.

Covers: `module.py:build` and `module.py:callbacks`, whose parameters are found by name.
Does not cover: loading it (core/user/code.py), what is done with what it returns.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.user.code import load_function

__all__ = ["call_user", "load_function"]


def call_user(name: str, offered: Mapping[str, Any]) -> Any:
    """Call `module.py:function` with those of the offered values that it names."""
    function = load_function(name)
    try:
        asked = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        asked = {}
    missing = [key for key, p in asked.items() if p.default is p.empty and key not in offered and _named(p)]
    if missing:
        raise InvalidInput(f"{name} asks for {', '.join(missing)}; it can have {', '.join(offered)}, or nothing.")
    try:
        return function(**{key: value for key, value in offered.items() if key in asked})
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidInput(f"{name} failed{_line(error, name)}: {type(error).__name__}: {error}") from error


def _named(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _line(error: Exception, name: str) -> str:
    """Where in the user's file, as " in line 3"; empty where that is unknown."""
    file = name.rpartition(":")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(file)]
    return f" in line {frames[-1].lineno}" if frames and frames[-1].lineno else ""

"""What a cached result depends on, as a short text: the data, and the code that was applied to it.

Covers: identifying users' functions by what they do, not by their name.
Does not cover: what is kept under the key (row_store.py).

A function is known by its bytecode, constants, defaults, closed-over values, and the functions and values it names
globally. Line numbers and file names do not count, so that a moved function is the same function.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.source import OnError, Source
from penstock.plan.steps import Step

_VERSION = "1"


def cache_key(source: Source, transforms: Iterable[Step]) -> str:
    """The name of the cache entry for `source` with `transforms` applied."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{_VERSION}|{type(source).__qualname__}|{source.fingerprint()}".encode())
    # A source that runs users' code (a generator) cannot put it into its fingerprint, which is also a position's.
    _add(digest, getattr(source, "functions", None), set())
    for step in transforms:
        digest.update(f"|{type(step).__name__}".encode())
        for field in dataclasses.fields(step):
            value = getattr(step, field.name)
            if field.name != "workers":
                _add(digest, value.mode if isinstance(value, OnError) else value, set())
    return digest.hexdigest()


def _add(digest: Any, value: Any, seen: set[int]) -> None:
    """Feed a value to the digest, the same in every process."""
    digest.update(type(value).__qualname__.encode() + b":")
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
        digest.update(repr(value).encode())
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(digest, item, seen)
    elif isinstance(value, (set, frozenset)):
        # Sorted: the order of a set of strings differs from process to process.
        digest.update(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, dict):
        for name, item in value.items():
            _add(digest, name, seen)
            _add(digest, item, seen)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, types.ModuleType):
        digest.update(value.__name__.encode())
    elif id(value) not in seen:
        seen.add(id(value))
        _add_code(digest, value, seen)


def _add_code(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, types.CodeType):
        digest.update(value.co_code)
        _add(digest, (value.co_names, value.co_varnames, value.co_freevars, value.co_consts), seen)
    elif isinstance(value, types.FunctionType):
        _add_function(digest, value, seen)
    elif isinstance(value, types.MethodType):
        _add(digest, value.__func__, seen)
        _add(digest, value.__self__, seen)
    elif isinstance(value, functools.partial):
        _add(digest, (value.func, value.args, value.keywords), seen)
    else:
        method = vars(type(value)).get("__call__")
        if isinstance(method, types.FunctionType):
            _add(digest, method, seen)
        digest.update(_pickled(value))


def _add_function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    if function.__module__ and function.__module__.split(".")[0] in ("numpy", "torch", "tensorflow", "jax", "cv2"):
        digest.update(f"{function.__module__}.{function.__qualname__}".encode())
        return
    _add(digest, function.__code__, seen)
    _add(digest, (function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        if cell != types.CellType():  # an empty one belongs to a name that is not set yet
            _add(digest, cell.cell_contents, seen)
    for name in _names(function.__code__):
        if name in function.__globals__:
            _add(digest, name, seen)
            _add(digest, function.__globals__[name], seen)


def _names(code: types.CodeType) -> list[str]:
    """Global names that a function or one inside it uses."""
    found = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _names(constant)
    return sorted(set(found))


def _pickled(value: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise InvalidInput(
            f"cache: a function uses {type(value).__name__}, which cannot be identified ({error}). "
            "Put .cache() before the map that uses it."
        ) from error

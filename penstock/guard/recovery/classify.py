"""Is this exception an out-of-memory error, and what does it tell?

Covers: walking an exception's causes, types first and text second, the bytes that were asked for.
Does not cover: what to do about it (ladder.py), what each framework says (signs/).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.core.errors import OutOfMemory
from penstock.guard.recovery.signs.host import HOST
from penstock.guard.recovery.signs.jax import JAX
from penstock.guard.recovery.signs.signs import Signs
from penstock.guard.recovery.signs.tensorflow import TENSORFLOW
from penstock.guard.recovery.signs.torch import TORCH

ALL = (HOST, TORCH, TENSORFLOW, JAX)

# Text is trusted only in exceptions that a framework raises for its own failures: a user's ValueError
# that quotes the words "out of memory" is not one.
_CARRIERS = frozenset(
    {
        "builtins.RuntimeError",
        "builtins.OSError",
        "tensorflow.python.framework.errors_impl.OpError",
        "jaxlib._jax.XlaRuntimeError",
        "jaxlib._jax.JaxRuntimeError",
        "jax.errors.JaxRuntimeError",
        "jaxlib.xla_extension.XlaRuntimeError",
    }
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ASKED = (
    re.compile(r"tried to allocate ([0-9.]+) ?(bytes|b|kib|mib|gib|tib)\b"),
    re.compile(r"out of memory (?:while trying to allocate|allocating) ([0-9.]+) ?(bytes|b|kib|mib|gib|tib)\b"),
    re.compile(r"unable to allocate ([0-9.]+) ?(bytes|b|kib|mib|gib|tib)\b"),
)
_SPEAKS = re.compile(r"memory|\boom\b|alloc|exhausted", re.IGNORECASE)
_UNITS = {"bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclass(frozen=True, slots=True)
class Oom:
    """What an out-of-memory error said. Holds no exception: an exception pins the failed step's tensors."""

    framework: str
    text: str
    asked_nbytes: int | None = None


def classify(error: BaseException, *, memory_is_short: Callable[[], bool] | None = None) -> Oom | None:
    """The facts if this exception, or one that caused it, says that memory ran out; else None.

    Disguised errors count only when `memory_is_short` is given and says so.
    """
    links = list(chain(error))
    # The guard's own verdict is final, it is not one more failure to recover from.
    if any(isinstance(link, OutOfMemory) for link in links):
        return None
    for link in links:
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(link).__mro__}
        text = _ANSI.sub("", str(link))
        found = _match(kinds, text.lower())
        if found is None and memory_is_short is not None:
            found = _disguised(kinds, text.lower())
            found = found if found is not None and memory_is_short() else None
        if found is not None:
            return Oom(found.framework, _telling_line(text) or type(link).__name__, asked_nbytes(text))
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, then what it was raised from or while handling, each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        todo += [link.__cause__, None if link.__suppress_context__ else link.__context__]
        if isinstance(link, BaseExceptionGroup):
            todo += link.exceptions


def asked_nbytes(text: str) -> int | None:
    """The bytes that the failed allocation asked for, where the message says so."""
    for pattern in _ASKED:
        match = pattern.search(text.lower())
        if match is not None:
            return int(float(match[1].rstrip(".")) * _UNITS[match[2]])
    return None


def _match(kinds: set[str], text: str) -> Signs | None:
    for signs in ALL:
        if signs.types & kinds:
            return signs
    if _carries(kinds, text):
        for signs in ALL:
            if any(sign in text for sign in signs.texts):
                return signs
    return None


def _carries(kinds: set[str], text: str) -> bool:
    # XLA raises its status as a ValueError when a computation fails while it is dispatched.
    return bool(kinds & _CARRIERS) or text.startswith(("resource_exhausted:", "internal:"))


def _disguised(kinds: set[str], text: str) -> Signs | None:
    if not _carries(kinds, text):
        return None
    return next((signs for signs in ALL if any(sign in text for sign in signs.disguised)), None)


def _telling_line(text: str) -> str:
    """The line that speaks of memory, else the first: TensorFlow begins with "Graph execution error:" and a stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith('File "') and _SPEAKS.search(line)]
    return (told or lines or [""])[0][:300]

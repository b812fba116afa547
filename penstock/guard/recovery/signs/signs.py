"""The shape in which each framework describes its out-of-memory errors.

Covers: the record that oom/torch.py, oom/tensorflow.py, oom/jax.py and oom/host.py fill in.
Does not cover: matching an exception against it (guard/recovery/classify.py).

Types are given by qualified name, so that recognising an error never imports a framework.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signs:
    """How one framework says that memory ran out. Texts are lower case."""

    framework: str
    types: frozenset[str] = frozenset()
    """An exception of one of these types is an out-of-memory error whatever it says."""
    texts: tuple[str, ...] = ()
    """A RuntimeError-like exception with one of these texts is one too."""
    disguised: tuple[str, ...] = ()
    """Texts that mean it only when memory is really short (a oneDNN primitive can fail for other reasons)."""

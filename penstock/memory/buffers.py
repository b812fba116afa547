"""Where large arrays come from: sources ask here, and a run may answer with memory that was used before.

Covers: `empty` for code that fills a large array, `lent_by` for the run that lends buffers to this thread.
Does not cover: the buffers and who pays for them (engine/buffers/blocks.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from penstock.memory.budget import Lease

LENT_NBYTES = 256_000
"""Arrays from this size on are lent: below it malloc has memory at hand, and a buffer is whole pages."""


_PLAIN = "biufcmM"


class Lender(Protocol):
    """Provides reusable buffers."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An uninitialised array that keeps its buffer until its last view is gone."""

    def lease(self, nbytes: int, who: str) -> Lease:
        """Bytes of the run's budget for a buffer that is the caller's own."""


_thread = threading.local()


@contextmanager
def lent_by(one: Lender | None) -> Iterator[None]:
    """Large arrays that this thread asks for come from `one` inside the block."""
    before = getattr(_thread, "lender", None)
    _thread.lender = one
    try:
        yield
    finally:
        _thread.lender = before


def lender() -> Lender | None:
    """Who lends to this thread now."""
    found: Lender | None = getattr(_thread, "lender", None)
    return found


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As np.empty, from the buffers of the run that reads, if there is one."""
    kind, here = np.dtype(dtype), lender()
    if here is None or kind.kind not in _PLAIN or math.prod(shape) * kind.itemsize < LENT_NBYTES:
        return np.empty(shape, kind)
    return here.array(shape, kind)

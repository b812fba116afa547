"""Arrays that users' functions make, in memory that is used again.

Covers: lending it to a thread while a function runs, paying for what lies idle.
Does not cover: the memory itself (native/arrays.py); arrays in use are paid by the lease of the job that made them.

Batches of 20 MB cost a page fault every 4 KB otherwise, for each array that a function makes on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.memory.budget import Budget, Lease
from penstock.native.arrays import keep_idle, recycled

_MOST_KEPT_NBYTES = 512_000_000
_ROOM_SHARE = 4
"""Idle bytes are kept up to this part of what is free: where memory is short, readers and batches need it more."""


class ArrayMemory:
    """Lends recycled memory to the functions of one run."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """New arrays of this thread lie in recycled memory inside the block."""
        with recycled():
            yield
        self._pay()

    def drop_idle(self) -> None:
        """Give idle memory up, for a budget under pressure."""
        with self._lock:
            keep_idle(0)
            if self._lease is not None:
                self._lease.resize(0)

    def close(self) -> None:
        """Give idle memory up now, and what is in use as it comes back."""
        with self._lock:
            self._closed = True
            keep_idle(0)
            if self._lease is not None:
                self._lease.close()

    def _pay(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._lease is None:
                self._lease = self._budget.force(0, who="functions")
            room = self._budget.room + self._lease.nbytes
            self._lease.resize(keep_idle(max(0, min(_MOST_KEPT_NBYTES, room // _ROOM_SHARE))))

"""Batch buffers that are used again and again.

Covers: leased, page-backed buffers that come back by themselves when the consumer drops its arrays.
Does not cover: filling them (engine/streams/batch.py, engine/streams/rows.py).

A fresh buffer costs a page fault every 4 KB, which is a third of a decode; a recycled one costs nothing. Buffers are
anonymous maps, so that one that is given up goes back to the system at once instead of into malloc's heap.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from penstock.core.errors import TooLarge
from penstock.core.schema import Schema
from penstock.memory.budget import Budget, Lease

ALIGN = 64
"""jax.device_put takes arrays without a copy only at this alignment."""

_PAGE = 4096
_PLENTY, _LARGE_NBYTES, _PATIENCE_S = 3, 2_000_000, 0.01
"""With so many slabs out and work under way, another large one is made only if none comes back within this time: a
consumer that was just given a batch lets go of the one before as soon as it runs. With more out, where epochs meet, the
next try will do. A consumer that keeps all batches is waited for once."""

_IDLE_KEPT = 3
"""Idle buffers kept: what one batch in the making, one waiting and one just returned need."""


_PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Python's default is memory to share with children, which costs more at each page fault and cannot have huge pages."""


class Slab:
    """One buffer and its lease."""

    __slots__ = ("address", "lease", "memory", "nbytes")

    def __init__(self, nbytes: int, lease: Lease) -> None:
        self.nbytes, self.lease = nbytes, lease
        self.memory = mmap.mmap(-1, nbytes, **_PRIVATE)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data

    def free(self) -> None:
        """Give the memory back to the system and the bytes back to the budget."""
        self.memory.close()
        self.lease.close()


class Owner(Protocol):
    """Where a slab returns to."""

    def put_back(self, slab: Slab) -> None: ...


class Loan:
    """The owner that NumPy arrays over a slab refer to; its end is the slab's return."""

    __slots__ = ("_pool", "slab")

    def __init__(self, slab: Slab, pool: Owner) -> None:
        self.slab, self._pool = slab, pool

    def __del__(self) -> None:
        self._pool.put_back(self.slab)


class LoanedArray:
    """What np.asarray turns into an array whose base keeps the loan alive."""

    __slots__ = ("__array_interface__", "loan")

    def __init__(self, loan: Loan, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.loan = loan
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (loan.slab.address + offset, False),
        }


class IdleSlabs:
    """Slabs that wait to be used again. They come back from any thread and from the garbage collector."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._idle: list[Slab] = []
        # Re-entrant: a loan may end by garbage collection inside this very class.
        self._lock = threading.RLock()
        self._closed = False

    def drop_idle(self) -> int:
        """Give idle slabs up, for a budget under pressure; returns the bytes freed."""
        with self._lock:
            idle, self._idle = self._idle, []
        for slab in idle:
            slab.free()
        return sum(slab.nbytes for slab in idle)

    def close(self) -> None:
        """Free idle slabs now, and those on loan as they come back."""
        with self._lock:
            self._closed = True
        self.drop_idle()


class SlabPool(IdleSlabs):
    """Hands out slabs for batches and takes them back."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._most_nbytes = budget.total
        self._returned = threading.Condition(self._lock)
        self._out, self._patient = 0, True

    def arrays(self, schema: Schema, rows: int, *, must: bool, spare: bool = False) -> dict[str, np.ndarray] | None:
        """Uninitialised arrays for the fixed columns of `schema`, or None if the budget has no room now.

        With `spare`, nothing large is made while plenty is out: for work that has time.
        """
        fields = [f for f in schema if f.fixed]
        offsets, at = [], 0
        for field in fields:
            offsets.append(at)
            at += -(-(field.row_nbytes * rows) // ALIGN) * ALIGN
        slab = self._get(max(_PAGE, -(-at // _PAGE) * _PAGE), must, spare)
        if slab is None:
            return None
        loan = Loan(slab, self)
        return {
            f.name: np.asarray(LoanedArray(loan, offset, (rows, *(n or 0 for n in f.shape)), f.dtype))
            if f.dtype.kind not in "mM"
            else datetimes(loan, offset, (rows, *(n or 0 for n in f.shape)), f.dtype)
            for f, offset in zip(fields, offsets, strict=True)
        }

    def put_back(self, slab: Slab) -> None:
        """Take a slab back; keep a few of the size now in use."""
        with self._lock:
            self._out, self._patient = self._out - 1, True
            self._returned.notify()
            keep = not self._closed and len(self._idle) < _IDLE_KEPT
            if keep:
                self._idle.append(slab)
        if not keep:
            slab.free()

    def _get(self, nbytes: int, must: bool, spare: bool) -> Slab | None:
        if not must and nbytes >= _LARGE_NBYTES and not self._worth_another(spare):
            return None
        slab = self._idle_one(nbytes)
        if slab is None:
            lease = self._lease(nbytes)
            if lease is None and self.drop_idle():
                lease = self._lease(nbytes)
            if lease is None and must:
                lease = self._budget.force(nbytes, who="batches")
            slab = None if lease is None else Slab(nbytes, lease)
        if slab is not None:
            with self._lock:
                self._out += 1
        return slab

    def _worth_another(self, spare: bool) -> bool:
        """Whether a slab is idle, comes back in a moment, or is better made now; False: ask again later."""
        with self._lock:
            if self._idle or self._out < _PLENTY:
                return True
            if spare or not self._patient:
                return not spare
            self._patient = self._out == _PLENTY and self._returned.wait(_PATIENCE_S)
            return self._patient or self._out == _PLENTY

    def _idle_one(self, nbytes: int) -> Slab | None:
        with self._lock:
            for index, slab in enumerate(self._idle):
                if slab.nbytes == nbytes:
                    return self._idle.pop(index)
        return None

    def _lease(self, nbytes: int) -> Lease | None:
        if nbytes > self._most_nbytes:
            raise TooLarge(who="A batch", nbytes=nbytes, limit=self._most_nbytes, change="Make batches smaller")
        return self._budget.try_lease(nbytes, who="batches") if nbytes <= self._budget.total else None


def datetimes(loan: Loan, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """As a loaned array, of times: the array interface does not carry their unit, so integers are seen as times."""
    return np.asarray(LoanedArray(loan, offset, shape, np.dtype(np.int64))).view(dtype)


def rows_of(arrays: Mapping[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    """The same rows of all arrays, as views."""
    return {name: array[start:stop] for name, array in arrays.items()}

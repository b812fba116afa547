"""Buffers of blocks that are used again and again.

Covers: lending page-backed arrays to sources while they read, taking them back, keeping a few.
Does not cover: batch buffers (batch.py), sources, which are given them (core/source.py).

A fresh page costs more than the numbers that are written into it, and what one thread allocates and another frees
stays in the allocator's books. A lent buffer is paid for by its reader's lease, except for what it is larger
than asked; an idle one is on a lease of its own.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from penstock.engine.buffers.batch import IdleSlabs, Loan, LoanedArray, Slab, datetimes
from penstock.memory.budget import Lease

LENT_NBYTES = 256_000
"""Arrays from this size on are lent: below it malloc has memory at hand, and a buffer is whole pages."""

_PLAIN = "biufcmM"
"""Kinds of numbers whose bytes may be anything before they are written."""

_PAGE = 4096
_IDLE_KEPT = 16
"""Idle buffers kept. They are no more than were in use at once, so keeping them does not raise the peak."""

_LARGER = 16
"""A buffer may be larger than asked by this part: blocks of text differ a little in rows."""


_ROOM_SHARE = 4
"""A buffer is kept if so many times its size is free: where memory is short, readers and batches need it more."""


class BlockBuffers(IdleSlabs):
    """The `Buffers` of one run."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array that keeps its buffer until its last view is gone; the caller's lease pays for it."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < LENT_NBYTES or kind.kind not in _PLAIN:
            return np.empty(shape, kind)
        loan = Loan(self._get(nbytes), self)
        if kind.kind in "mM":
            return datetimes(loan, 0, shape, kind)
        return np.asarray(LoanedArray(loan, 0, shape, kind))

    def lease(self, nbytes: int, who: str) -> Lease:
        """Bytes for a reader's own buffer, which it needs now: they may overdraw the budget."""
        return self._budget.force(nbytes, who=who)

    def put_back(self, slab: Slab) -> None:
        """Take a buffer back and keep it if there is room, rather than one that has lain idle longest."""
        with self._lock:
            keep = not self._closed and _ROOM_SHARE * slab.nbytes <= self._budget.room
            surplus = self._idle.pop(0) if keep and len(self._idle) >= _IDLE_KEPT else None
            if keep:
                slab.lease.resize(slab.nbytes)
                self._idle.append(slab)
        if not keep:
            slab.free()
        if surplus is not None:
            surplus.free()

    def _get(self, nbytes: int) -> Slab:
        pages = -(-max(1, nbytes) // _PAGE) * _PAGE
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if pages <= self._idle[index].nbytes <= pages + pages // _LARGER:
                    slab = self._idle.pop(index)
                    slab.lease.resize(slab.nbytes - nbytes)
                    return slab
        slab = Slab(pages, self._budget.force(pages - nbytes, who="blocks"))
        if hasattr(mmap, "MADV_HUGEPAGE"):  # rows are read from all over the buffer: fewer pages, fewer look-ups
            slab.memory.madvise(mmap.MADV_HUGEPAGE)
        return slab

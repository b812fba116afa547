"""Buffers of blocks that are used again and again.

Covers: lending page-backed arrays to sources while they read, taking them back, keeping a few.
Does not cover: batch buffers (batch.py), who asks (sources/, through memory/buffers.py).

A fresh page costs more than the numbers that are written into it, and what one thread allocates and another frees
stays in the allocator's books. A buffer that is lent is paid by the lease of whoever reads into it, but for what it is
larger than asked; an idle one has its bytes on lease itself.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from penstock.engine.buffers.batch import IdleSlabs, Loan, LoanedArray, Slab, datetimes
from penstock.memory.budget import Lease

_PAGE = 4096
_IDLE_KEPT = 16
"""Idle buffers kept. They are no more than were in use at once, so keeping them does not raise the peak."""

_LARGER = 16
"""A buffer may be larger than asked by this part: blocks of text differ a little in rows."""


_ROOM_SHARE = 4
"""A buffer is kept if so many times its size is free: where memory is short, readers and batches need it more."""


class BlockBuffers(IdleSlabs):
    """Lends buffers to one run's readers."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An uninitialised array; the caller's lease pays for its bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        loan = Loan(self._get(nbytes), self)
        if dtype.kind in "mM":
            return datetimes(loan, 0, shape, dtype)
        return np.asarray(LoanedArray(loan, 0, shape, dtype))

    def lease(self, nbytes: int, who: str) -> Lease:
        """Bytes for a reader's own buffer; it needs it now, so they may overdraw the budget."""
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

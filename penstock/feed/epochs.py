"""Which epoch comes next, also when several processes read one dataset together.

Covers: counting epochs in a process, and one count for all worker processes of a loader.
Does not cover: what an epoch changes (order/), dividing an epoch among workers (part.py).

Worker processes of a loader start again with every epoch and would all begin at epoch 0. They also must agree: two
workers that cut their parts from different orders would read some rows twice and others never. So a worker comes with
a ticket that is the same for all workers of one pass, and the first to show it fixes the epoch for all.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context as spawning
from multiprocessing import reduction
from typing import Any

import numpy as np

_TICKETS = 64
"""Passes remembered: a slow worker may still ask for one while others are some ahead."""

_MEMBERS = 62
_HEAD = 2
_CELLS = _HEAD + 3 * _TICKETS


class EpochNumbers:
    """Hands out epoch numbers, one after the other."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._lock = threading.Lock()
        self._file: int | None = None

    def take(self, ticket: int | None = None, member: int = 0) -> int:
        """The next epoch; the same one for all members who come with the same ticket, each once."""
        with self._lock:
            if self._file is None:
                self._next += 1
                return self._next - 1
            with self._cells(self._file) as cells:
                return _take(cells, ticket, member)

    def share(self) -> None:
        """Let processes that are started from here on count together."""
        with self._lock:
            if self._file is None:
                cells = np.zeros(_CELLS, dtype=np.int64)
                cells[0] = self._next
                self._keep(_unnamed_file())
                self._write(cells)

    def _keep(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def _write(self, cells: np.ndarray) -> None:
        assert self._file is not None
        os.pwrite(self._file, cells.tobytes(), 0)

    @contextmanager
    def _cells(self, file: int) -> Iterator[np.ndarray]:
        """The shared numbers, while no other process sees or changes them."""
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            cells = np.frombuffer(os.pread(file, 8 * _CELLS, 0), dtype=np.int64).copy()
            yield cells
            self._write(cells)
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        # A process being spawned inherits the file; a copy that goes elsewhere counts for itself from here.
        with self._lock:
            if self._file is None:
                return {"next": self._next}
            if spawning.get_spawning_popen() is not None:
                return {"file": reduction.DupFd(self._file)}
            with self._cells(self._file) as cells:
                return {"next": int(cells[0])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._next, self._file, self._lock = state.get("next", 0), None, threading.Lock()
        if "file" in state:
            self._keep(state["file"].detach())


def _take(cells: np.ndarray, ticket: int | None, member: int) -> int:
    """Cells are: the next epoch, the number of tickets so far, then for each its number, epoch and members seen."""
    if ticket is None:
        cells[0] += 1
        return int(cells[0]) - 1
    ticket |= 1  # cells never written are 0
    mark = 1 << member % _MEMBERS
    known = cells[_HEAD:].reshape(-1, 3)
    found = np.flatnonzero(known[:, 0] == ticket)
    # A member that comes again is in a new pass, even if its loader was seeded as before.
    if found.size and not int(known[found[0], 2]) & mark:
        known[found[0], 2] |= mark
        return int(known[found[0], 1])
    place = found[0] if found.size else cells[1] % _TICKETS
    known[place] = ticket, cells[0], mark
    cells[1] += 0 if found.size else 1
    cells[0] += 1
    return int(cells[0]) - 1


def _unnamed_file() -> int:
    """A file without a name, so that nothing is left behind however the process ends."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-epochs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

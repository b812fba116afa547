"""Ends a worker whose parent is gone.

Covers: asking the kernel to signal a worker when the process that started it is gone; one worker at a time in a folder.
Does not cover: what the worker does then (guard/stop.py saves and stops).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SET_DEATH_SIGNAL = 1


def die_with_parent() -> None:
    """SIGTERM when the parent ends, however it ends; at once if it is gone already. Linux only."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it ended between the two calls
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def only_worker(folder: Path) -> Iterator[None]:
    """Wait until no other worker writes here: one whose parent was killed may still be saving."""
    with open(folder / ".worker", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

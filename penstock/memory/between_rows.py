"""Threads that run users' functions check memory between two rows.

Covers: a check that costs a tenth of a microsecond while nothing is due, for loops over users' functions.
Does not cover: measuring and deciding (watchdog.py).

The watchdog's own thread queues for the interpreter lock behind every thread that computes in Python, 5 ms each. What
leaks is such a thread: it holds the lock while memory grows, so it checks memory itself, and stops after a verdict.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from penstock.core.errors import Stopped


class Watch(Protocol):
    """The watchdog, as loops see it."""

    due_s: float
    """When memory should be looked at again, by `time.monotonic`."""

    @property
    def gave_up(self) -> bool:
        """Whether a verdict has fallen."""

    def look(self) -> None:
        """Look at memory if that is due."""


_watch: Watch | None = None


def set_watchdog(watch: Watch | None) -> None:
    """From now on loops ask this watchdog, or none."""
    global _watch
    _watch = watch


def check_memory() -> None:
    """Have memory measured if that is due; raises Stopped once a verdict has fallen."""
    if _watch is not None and monotonic() >= _watch.due_s:
        _watch.look()
        if _watch.gave_up:
            raise Stopped("The stream is closed: memory ran out.")

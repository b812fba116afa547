"""Damaged rows that a run leaves out, reported by name.

Covers: the first ten pieces as events, once each, however many epochs meet them.
Does not cover: deciding what to skip (core/source.py), giving up when there are too many.
"""

from __future__ import annotations

import threading

from penstock.core.errors import BadData
from penstock.core.events import events
from penstock.core.source import Source

TOLD = 10
"""Pieces that are named; the rest is counted."""


class Skipped:
    """Tells each damaged piece once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def listen_to(self, source: Source) -> None:
        """Hear what a source leaves out from now on; sources that cannot skip are left alone."""
        policy = getattr(source, "on_error", None)
        if policy is not None and getattr(policy, "mode", "raise") == "skip":
            policy.listener = self.hear

    def hear(self, error: BadData) -> None:
        """Take one damaged piece."""
        with self._lock:
            if str(error.where) in self._seen or len(self._seen) > TOLD:
                return
            self._seen.add(str(error.where))
            last = len(self._seen) > TOLD
        if last:
            events.emit("data.skipped", "data", text=f"more than {TOLD} pieces of damaged data are left out")
        else:
            events.emit("data.skipped", "data", text=f"left out {error.where}: {error.reason}")


skipped = Skipped()

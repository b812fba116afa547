"""Events: every decision and measurement, reported once.

Covers: the event, a hub that hands events to listeners and keeps the last few, and a count of slower ways taken.
Does not cover: writing them down (watch/), acting on them (engine/workers/tune.py, doctor/).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 1000
"""Events kept in memory; a listener that wants all of them writes them to disk."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `kind` is dotted: 'tune.io', 'watchdog.shrink', 'data.skipped'."""

    kind: str
    who: str
    values: Mapping[str, Any] = field(default_factory=dict)
    time_s: float = field(default_factory=time.time)

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in self.values.items())
        return f"{self.kind} {self.who}" + (f": {values}" if values else "")


class Events:
    """Hands each event to its listeners. A listener that raises is dropped, never the run."""

    def __init__(self) -> None:
        self.recent: deque[Event] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        with self._lock:
            self._listeners.append(listener)

        def remove() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove

    def emit(self, kind: str, who: str, **values: Any) -> None:
        """Record that something happened."""
        event = Event(kind, who, values)
        self.recent.append(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:
                with self._lock:
                    if listener in self._listeners:
                        self._listeners.remove(listener)
                self.recent.append(Event("events.listener_failed", repr(listener), {"error": repr(error)}))


events = Events()
"""The process's hub."""


_counting = threading.Lock()
_counts: dict[tuple[str, str], int] = {}


def fell_back(what: str, why: str) -> None:
    """Count one time that `what` went a slower way, because of `why`. Cheap: it may be called for every picture."""
    with _counting:
        count = _counts[what, why] = _counts.get((what, why), 0) + 1
    if str(count).strip("0") == "1":  # 1, 10, 100: reports grow with the logarithm of the count
        events.emit("fallback", what, why=why, count=count)


def fallbacks() -> dict[tuple[str, str], int]:
    """How often this process has gone each slower way so far."""
    with _counting:
        return dict(_counts)


def fallbacks_in_words() -> list[str]:
    """One line for each slower way, the most frequent first."""
    found = sorted(fallbacks().items(), key=lambda item: -item[1])
    return [f"{what}: {why} ({count:,} {'time' if count == 1 else 'times'})" for (what, why), count in found]

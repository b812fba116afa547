"""The wait for a row store: what is waited for, and how much longer.

Covers: an event after each run, and a line in the log when the wait is long enough to ask what is going on.
Does not cover: filling (fill.py); showing events on a page (watch/).
"""

from __future__ import annotations

import logging
import time

from penstock.core.sizes import size
from penstock.engine.streams.stream import Context

_FIRST_LINE_S, _NEXT_LINE_S = 3.0, 15.0
"""When the first line is due, and how long there is none after one."""

_WHY = (
    " The first batch waits for it, once; later epochs and runs do not. shuffle(window=...) begins at once, and mixes "
    "neighbouring rows only."
)

_log = logging.getLogger("penstock")


class Wait:
    """Tells how far a store is that the first batch waits for."""

    def __init__(self, context: Context, label: str, nbytes: int) -> None:
        self._events, self._label, self._before = context.events, label, nbytes
        self._began_s = time.monotonic()
        self._line_s = self._began_s + _FIRST_LINE_S
        self._told = False

    def tell(self, rows: int, nbytes: int, whole_nbytes: int) -> None:
        """`nbytes` are written of about `whole_nbytes`."""
        now_s = time.monotonic()
        written = max(1, nbytes - self._before)
        left_s = (now_s - self._began_s) * max(0, whole_nbytes - nbytes) / written
        values = {"rows": rows, "nbytes": nbytes, "whole_nbytes": whole_nbytes, "left_s": round(left_s, 1)}
        self._events.emit("rowstore.written", self._label, **values)
        if now_s < self._line_s:
            return
        self._line_s = now_s + _NEXT_LINE_S
        why = "" if self._told else _WHY
        self._told = True
        _log.warning(
            "shuffle of %s: rows are written to disk in random order, %s of about %s, about %.0f s left.%s",
            self._label,
            size(nbytes),
            size(whole_nbytes),
            left_s,
            why,
        )

"""Watching memory around a piece of code.

Covers: `with ps.watch_memory() as m:` for notebooks and tests: peak, growth, and a limit that raises.
Does not cover: whole scripts (`penstock run`), a peak measured apart from this process (assert_peak.py).
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from penstock.core.errors import OutOfMemory
from penstock.core.sizes import Size, parse_size, size
from penstock.memory.meter import Meter

EVERY_S = 0.02


class watch_memory:
    """Measure this process and its children while a block runs. Lower case, since it reads as a verb.

    >>> with watch_memory() as m:
    ...     data = bytearray(50_000_000)
    >>> m.peak >= m.before
    True

    `stop_at` ends the block with OutOfMemory once the tree holds that much: a notebook then lives where its kernel
    would have been killed. It interrupts Python code, so a single call into C is ended only when it returns.
    """

    def __init__(self, *, stop_at: Size | None = None) -> None:
        self.stop_at = None if stop_at is None else parse_size(stop_at)
        self.before = self.after = self.peak = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._reached = 0
        self._handler: object = None

    @property
    def grown(self) -> int:
        """Bytes at the end above those at the start."""
        return self.after - self.before

    def __enter__(self) -> Self:
        self._ended.clear()
        self.before = self.peak = Meter().read(exact=True).nbytes
        if self.stop_at is not None:
            self._handler = signal.signal(signal.SIGALRM, self._stop)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="penstock-watch-memory")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.stop_at is not None:
            signal.signal(signal.SIGALRM, self._handler)  # type: ignore[arg-type]
        self.after = Meter().read(exact=True).nbytes
        self.peak = max(self.peak, self.after)

    def _watch(self) -> None:
        meter = Meter()
        while not self._ended.wait(EVERY_S):
            used = meter.read().nbytes
            self.peak = max(self.peak, used)
            if self.stop_at is not None and used > self.stop_at and not self._reached:
                self._reached = used
                os.kill(os.getpid(), signal.SIGALRM)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        raise OutOfMemory(
            f"This block was stopped at {size(self._reached)}; stop_at is {size(self.stop_at or 0)}. "
            f"It began with {size(self.before)}.",
            phase="watch",
            micro=0,
        )

    def __str__(self) -> str:
        return f"peak {size(self.peak)}, {size(self.grown)} more at the end than at the start"

"""Watching memory around a piece of code.

Covers: `with ps.watch_memory() as m:` for notebooks and tests: peak, growth, and a limit that raises. Memory is looked
at fifty times a second; a peak of this process that is over between two looks is shown by the kernel's high-water mark,
where it is higher than ever before in this process.
Does not cover: whole scripts (`penstock run`), a peak measured apart from this process (assert_peak.py).
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple, Self

from penstock.core.errors import OutOfMemory
from penstock.core.sizes import Size, parse_size, size
from penstock.memory.meter import Meter

EVERY_S = 0.02


class Marks(NamedTuple):
    """Bytes of this process: resident now, the highest that ever were, and how many now are pages of files."""

    resident: int
    highest: int
    file: int


def read_marks() -> Marks | None:
    """What the kernel keeps about this process; None where there is no /proc."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if not {"VmRSS", "VmHWM", "RssFile"} <= rows.keys():
        return None
    return Marks(*(int(rows[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssFile")))


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
        self._marks: Marks | None = None

    @property
    def grown(self) -> int:
        """Bytes at the end above those at the start."""
        return self.after - self.before

    def __enter__(self) -> Self:
        self._ended.clear()
        self.before = self.peak = Meter().read(exact=True).nbytes
        self._marks = read_marks()
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
        self.peak = max(self.peak, self.after, self._short_peak())

    def _watch(self) -> None:
        meter = Meter()
        while not self._ended.wait(EVERY_S):
            used = meter.read().nbytes
            self.peak = max(self.peak, used)
            if self.stop_at is not None and used > self.stop_at and not self._reached:
                self._reached = used
                os.kill(os.getpid(), signal.SIGALRM)

    def _short_peak(self) -> int:
        """The peak as the kernel has it, if this block moved the mark; pages of files do not count."""
        before, after = self._marks, read_marks()
        if before is None or after is None or after.highest <= before.highest:
            return 0
        return self.before + after.highest - before.resident - max(0, after.file - before.file)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        raise OutOfMemory(
            f"This block was stopped at {size(self._reached)}; stop_at is {size(self.stop_at or 0)}. "
            f"It began with {size(self.before)}.",
            phase="watch",
            micro=0,
        )

    def __str__(self) -> str:
        return f"peak {size(self.peak)}, {size(self.grown)} more at the end than at the start"

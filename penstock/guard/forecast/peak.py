"""The high-water mark of this process's memory between two moments.

Covers: the most anonymous memory held since a reset, exactly where the kernel keeps a mark, else by sampling.
Does not cover: other processes (memory/meter.py).

Linux keeps the highest resident size since the last reset. Mapped files (the framework's libraries) are in it but do
not count against a limit, since the kernel can drop them: they hardly change while a step runs and are taken off.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.memory.meter import Meter

SAMPLE_S = 0.002
_RESET = Path("/proc/self/clear_refs")


class Peak:
    """Inside the block the most memory is watched; `nbytes` is it afterwards."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._sampler: _Sampler | None = None

    def __enter__(self) -> Self:
        if not _reset():
            self._sampler = _Sampler()
            self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampler is None:
            self.nbytes = _status("VmHWM") - _status("RssFile")
        else:
            self.nbytes = self._sampler.finish()


def held_nbytes() -> int:
    """Anonymous and shared memory of this process now."""
    return Meter().read().by_process[0].nbytes


class _Sampler(threading.Thread):
    """Looks again and again. Short peaks can be missed, so this is for kernels without a mark."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="penstock-peak")
        self._stop_asked = threading.Event()
        self._peak = held_nbytes()

    def run(self) -> None:
        while not self._stop_asked.wait(SAMPLE_S):
            self._peak = max(self._peak, held_nbytes())

    def finish(self) -> int:
        """Stop, and tell the most that was seen."""
        self._stop_asked.set()
        self.join()
        return max(self._peak, held_nbytes())


def _reset() -> bool:
    if sys.platform != "linux":
        return False
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0

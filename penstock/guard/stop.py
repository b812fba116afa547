"""Being asked to stop.

Covers: SIGTERM as a flag that the loop looks at between steps.
Does not cover: what is saved then (guard/fit.py).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODE = 128 + signal.SIGTERM


class StopSignal:
    """Inside the block SIGTERM sets `asked`; the handler that was there before is put back afterwards."""

    def __init__(self, *, enabled: bool = True) -> None:
        # Only the main thread may set handlers.
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self.asked = False

    def __enter__(self) -> Self:
        if self._enabled:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

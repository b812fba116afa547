"""Being asked to stop.

Covers: SIGTERM, or a file where no signal can be sent, as a flag that the loop looks at between steps; the line that
tells how to go on.
Does not cover: what is saved then (fit.py).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODE = 128 + signal.SIGTERM
LOST_CODE = 75
"""The exit code of a rank whose fellow is gone: nothing was wrong with it. EX_TEMPFAIL of sysexits.h."""
STOP_FILE_ENV = "PENSTOCK_STOP_FILE"
"""Names a file that asks to stop once it exists: ranks may be on other machines, and in processes of other programs."""
STOP_FILE = ".stop"
"""Its name in a run folder."""


class StopSignal:
    """Inside the block SIGTERM sets `asked`; the handler that was there before is put back afterwards."""

    def __init__(self, *, enabled: bool = True) -> None:
        # Only the main thread may set handlers.
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._signalled = False
        self._file = os.environ.get(STOP_FILE_ENV)

    @property
    def asked(self) -> bool:
        """Whether anybody wants the run to stop."""
        return self._signalled or (self._file is not None and os.path.exists(self._file))

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
        self._signalled = True


def tell_stopped(folder: Path, *, epoch: int, step: int) -> None:
    """One line for the terminal: where the run is saved, and how to go on. Counts from 0, as the loop does."""
    print(
        f"penstock: stopped at epoch {epoch + 1}, batch {step}, as asked; the run is saved in {folder}. "
        f"To go on: fit(..., checkpoint={str(folder)!r}, resume=True).",
        file=sys.stderr,
        flush=True,  # the process ends now
    )

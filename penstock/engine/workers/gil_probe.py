"""How much of the time a function keeps other threads from running Python.

Covers: a probe thread that tries to run now and then while a function is at work.
Does not cover: what follows from it (tune.py).

The probe sleeps for a moment and wants the interpreter lock (GIL) back. Next to NumPy, OpenCV or a read it gets it at
once; next to a Python loop it waits for the interpreter's switch interval, 5 ms. Time that it spent waiting for a
processor is reported by the kernel and does not count.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from contextlib import suppress

_NAP_S = 0.0002
_BLOCKED_MOST_S = 0.006
"""Counted of a single wait at most: a Python thread gives the lock up after 5 ms."""

_PR_SET_TIMERSLACK = 29


class GilProbe:
    """Use as a context manager around the function; several uses add up."""

    def __init__(self) -> None:
        self.naps = 0
        self.blocked_s = 0.0
        self._stop = False
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> float:
        """Share of the time in which the interpreter lock was taken, 0..1: waiting for it, against napping."""
        return self.blocked_s / (self.blocked_s + self.naps * _NAP_S) if self.naps else 0.0

    def __enter__(self) -> GilProbe:
        self._stop = False
        self._thread = threading.Thread(target=self._watch, name="penstock-gil-probe", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # naps end on time instead of up to 50 us late
        with _RunDelay(threading.get_native_id()) as delay:
            began, able = time.perf_counter(), delay.read_s() + time.thread_time()
            while not self._stop:
                time.sleep(_NAP_S)
                now_able, now = delay.read_s() + time.thread_time(), time.perf_counter()
                blocked = (now - began) - (now_able - able) - _NAP_S
                # A thread that loses its processor while it has the lock stalls everyone: that says nothing about it.
                self.blocked_s += min(max(0.0, blocked), _BLOCKED_MOST_S)
                self.naps += 1
                began, able = now, now_able


class _RunDelay:
    """How long a thread was able to run and had no processor, read again and again."""

    def __init__(self, task: int) -> None:
        self._path = f"/proc/self/task/{task}/schedstat"
        self._fd: int | None = None

    def __enter__(self) -> _RunDelay:
        with suppress(OSError):
            self._fd = os.open(self._path, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def read_s(self) -> float:
        """Seconds so far; 0 where the kernel does not report them."""
        if self._fd is None:
            return 0.0
        fields = os.pread(self._fd, 100, 0).split()
        return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def run_delay_s(task: int) -> float:
    """Seconds that a thread of this process was able to run and had no processor."""
    try:
        with _RunDelay(task) as delay:
            return delay.read_s()
    except OSError:  # the thread has ended
        return 0.0

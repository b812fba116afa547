"""Compiled kernels that are made beside the run: whoever asks for one goes on without it until it is there.

Covers: one thread a kernel, started when it is first asked for; a kernel that cannot be made.
Does not cover: what is compiled, and who reads meanwhile (csv_kernel.py, json_numbers.py, matrix.py, jpeg/kernel.py).
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np

_log = logging.getLogger("penstock")


class Kernel:
    """A compiled kernel of this process, one for each dtype. Compiling starts at the first call."""

    instead = "PyArrow reads instead"
    """What is done where the kernel cannot be made, as a part of a sentence."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[Any, Any] = {}
        self._asked: set[Any] = set()

    def loaded(self, dtype: Any) -> Any:
        """The compiled functions if they are there; nothing is started."""
        return self._ready.get(np.dtype(dtype))

    def get(self, dtype: Any, wait: bool = False) -> Any:
        """The compiled functions for a dtype, or None while they are not there."""
        key = np.dtype(dtype)
        found = self.loaded(key)
        if found is not None:
            return found
        if wait:
            self._compile(key)
            return self._ready.get(key)
        with self._lock:
            if key not in self._asked:
                self._asked.add(key)
                threading.Thread(target=self._compile, args=(key,), name="penstock-compile", daemon=True).start()
        return None

    def make(self, dtype: np.dtype[Any]) -> Any:
        """Compile, or load what was compiled before."""
        raise NotImplementedError

    def _compile(self, key: np.dtype[Any]) -> None:
        try:
            self._ready[key] = self.make(key)
        except Exception as error:  # a broken compiler costs speed, never the run
            _log.warning("A kernel could not be compiled (%s); %s.", error, self.instead)

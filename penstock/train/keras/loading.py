"""Loads Keras and its backend on a thread of its own, while the data is prepared.

Covers: when there is room for that, and waiting for it.
Does not cover: configuring the framework (job.py).

Loading takes 3 to 8 s, most of it reading files and running Python; the pass over the data mostly waits and runs
outside of the GIL.
"""

from __future__ import annotations

import importlib
import threading
import time

from penstock.core.events import events
from penstock.memory.limits import current_limit
from penstock.train.config import Config
from penstock.train.keras.obvious import FRAMEWORK_NBYTES

_TIMES = 3
"""The limit is so many times the framework: then data, a forecast's own copy of it and the model have room too."""


class Loading:
    """One framework being loaded. Does nothing where memory is short, or where ranks must join before it is loaded."""

    def __init__(self, config: Config, *, alone: bool) -> None:
        self._backend = config.backend
        self._thread: threading.Thread | None = None
        self._began_s = self._ended_s = 0.0
        if alone and current_limit().nbytes >= _TIMES * FRAMEWORK_NBYTES[config.backend]:
            self._thread = threading.Thread(target=self._load, name="penstock-loading", daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    @property
    def beside(self) -> bool:
        """Whether it is loaded beside the preparation."""
        return self._thread is not None

    def wait(self) -> None:
        """Until it is loaded, or has failed: then the import that follows fails in the same words."""
        asked_s = time.monotonic()
        if self._thread is not None:
            self._thread.join()
        else:
            self._load()
        waited_s, seconds = time.monotonic() - asked_s, self._ended_s - self._began_s
        events.emit("train.loaded", self._backend, seconds=seconds, waited_s=waited_s, beside=self.beside)

    def _load(self) -> None:
        self._began_s = time.monotonic()
        try:
            importlib.import_module("keras")
        except Exception as error:
            print(f"loading keras: {type(error).__name__}: {error}", flush=True)
        self._ended_s = time.monotonic()

"""How far a run is, how fast, and how long it waited for data.

Covers: counting samples, measuring the waits between batches, deciding when a report is due, the report's numbers.
Does not cover: who hears it (core/events.py), what the loss is (guard/keras/loop.py).

A report reads the loss, and reading it waits for the device: so it is made at most twice a second, never per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

EVERY_S = 0.5
"""The least time between two reports."""


@dataclass(frozen=True, slots=True)
class Since:
    """What happened since the report before."""

    samples: int
    samples_per_s: float
    waited_s: float
    waited_share: float


class Progress:
    """Counts samples and waits. `samples` and `waited_s` are those of the whole run so far.

    >>> progress = Progress()
    >>> for batch in progress.timed([[1, 2], [3]]):
    ...     due = progress.step(rows=len(batch))
    >>> progress.samples
    3
    """

    def __init__(
        self, *, samples: int = 0, every_s: float = EVERY_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.samples, self.waited_s = samples, 0.0
        self._every_s, self._clock = every_s, clock
        self._last_s = self._epoch_s = clock()
        self._due_s = self._last_s  # the first step is reported at once: it shows that the run is alive
        self._last_samples = self._epoch_samples = samples
        self._last_waited_s = 0.0

    def timed(self, batches: Any) -> Iterator[Any]:
        """The same batches; the time until each one comes is counted as waiting."""
        iterator, clock = iter(batches), self._clock
        while True:
            start_s = clock()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.waited_s += clock() - start_s
            yield batch
            del batch  # not held while the next one is made

    def step(self, rows: int) -> bool:
        """Count a step of so many rows; says whether a report is due."""
        self.samples += rows
        return self._clock() >= self._due_s

    def since(self) -> Since:
        """The numbers since the last call, which starts the next interval."""
        now_s = self._clock()
        seconds = max(now_s - self._last_s, 1e-9)
        samples, waited_s = self.samples - self._last_samples, self.waited_s - self._last_waited_s
        self._last_s, self._due_s = now_s, now_s + self._every_s
        self._last_samples, self._last_waited_s = self.samples, self.waited_s
        return Since(samples, samples / seconds, waited_s, min(1.0, max(0.0, waited_s / seconds)))

    def begin_epoch(self) -> None:
        """An epoch's own clock and count start."""
        self._epoch_s, self._epoch_samples = self._clock(), self.samples

    def end_epoch(self) -> tuple[float, int]:
        """Seconds and samples of the epoch, or of the part of it since a resume."""
        return self._clock() - self._epoch_s, self.samples - self._epoch_samples

"""Measure what a row takes, by small parts whose results are dropped.

Covers: taking the parts, their peaks, undoing them.
Does not cover: which sizes, and what follows from them (ladder.py), how a peak is read (forecast/peak.py).

Three parts: the first makes gradients and optimizer state, which later ones find there; the second and the third, of
twice its rows, are measured. Both hold what a part of a real step holds beside its rows, so the line through them is
that of a real step. The first is as large as the largest, since glibc raises its thresholds by what is freed: else the
third would be measured with what the second had left in the heap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.guard.forecast.peak import Peak, held_nbytes
from penstock.guard.recovery.free_memory import free_nbytes, release
from penstock.guard.recovery.microbatch import first_parts


@dataclass(frozen=True, slots=True)
class RowPeaks:
    """Two sizes, each its rows and its peak above what was `used` before, and what was free then."""

    small: tuple[int, int]
    large: tuple[int, int]
    used: int
    free: int


def measure_rows(stepper: Any, batch: Any, sizes: tuple[int, ...]) -> RowPeaks:
    """Take and drop small parts. Raises what they raise; the caller drops the step then."""
    used, free = held_nbytes(), free_nbytes()
    parts = first_parts(batch, (max(sizes), *sizes))
    stepper.begin(parts)
    stepper.part(parts[0])
    peaks = []
    for part in parts[1:]:
        release(thorough=False)
        with Peak() as peak:
            stepper.part(part)
        peaks.append((part.rows, max(0, peak.nbytes - used)))
    stepper.drop()
    return RowPeaks(peaks[0], peaks[1], used, free)

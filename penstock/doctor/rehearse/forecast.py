"""How a run will end, from its first minutes.

Covers: the slope of memory per step and per second once the start is over, the step at which it meets the limit.
Does not cover: running it (rehearse.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.doctor.verdict.shape import Point

FEWEST = 8
NOISE = 0.02
"""Growth below this share of the limit, over what was seen, is no slope."""


@dataclass(frozen=True)
class Outlook:
    """`per_step` is 0 where memory is steady; `dies_at` the step (or None where steps are not known) of the end."""

    peak: int
    per_step: float
    per_second: float
    dies_at: int | None
    dies_after_s: float | None


def outlook(points: Sequence[Point], limit: int) -> Outlook:
    """Look ahead from what was seen: floors of each fifth rather than single samples, so that a sawtooth is no leak."""
    peak = max((p.used for p in points), default=0)
    steps = [p for p in points if p.phase in ("train", "validation", "save", "predict")] or list(points)
    steps = steps[len(steps) // 4 :]
    if len(steps) < FEWEST:
        return Outlook(peak, 0.0, 0.0, None, None)
    fifth = max(1, len(steps) // 5)
    parts = [steps[i : i + fifth] for i in range(0, fifth * 5, fifth)]
    floors = [min(p.used for p in part) for part in parts if part]
    rising = all(later >= earlier - NOISE * limit / 5 for earlier, later in pairwise(floors))
    grown = floors[-1] - floors[0]
    if not rising or grown < NOISE * limit:
        return Outlook(peak, 0.0, 0.0, None, None)
    first, last = parts[0][0], parts[len(floors) - 1][0]
    per_second = grown / max(0.001, last.t - first.t)
    per_step = grown / (last.step - first.step) if last.step > first.step else 0.0
    left = max(0, limit - peak)
    dies_at = steps[-1].step + int(left / per_step) if per_step else None
    return Outlook(peak, per_step, per_second, dies_at, steps[-1].t + left / per_second)

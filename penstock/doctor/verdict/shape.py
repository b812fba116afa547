"""The shape of growth: peak at load, growth per step, sawtooth, step at validation, plateau.

Covers: naming a shape from (time, bytes, phase, step) points, and the slope per step.
Does not cover: why (causes/).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

NOTABLE = 0.10
"""Share of the limit from which a change counts."""


@dataclass(frozen=True)
class Point:
    """One sample: seconds since the start, bytes in use, what the main process was doing."""

    t: float
    used: int
    phase: str
    epoch: int
    step: int


@dataclass(frozen=True)
class Shape:
    """`name` in words; `per_step` is the slope in training where there is one; `by_phase` the growth in each phase."""

    name: str
    text: str
    per_step: float
    by_phase: dict[str, int]
    peak: int
    peak_phase: str


def shape_of(points: Sequence[Point], limit: int) -> Shape:
    """Name the growth of a run."""
    by_phase = _growth_by_phase(points)
    top = max(points, key=lambda p: p.used, default=Point(0, 0, "start", 0, 0))
    train = [p for p in points if p.phase in ("train", "validation", "save", "predict")]
    slope, steady = _slope([p for p in points if p.phase == "train"])
    grown = (max(p.used for p in train) - train[0].used) if train else 0
    if not train:
        name, text = "peak at load", "memory was taken before the first training step"
    elif _falls(train, limit) >= 2:
        name, text = "sawtooth", "memory rises and falls again and again"
    elif by_phase.get("validation", 0) > max(NOTABLE * limit, 0.6 * grown):
        name, text = "step at validation", "memory was taken during validation"
    elif by_phase.get("save", 0) > max(NOTABLE * limit, 0.6 * grown):
        name, text = "step at save", "memory was taken while saving"
    elif by_phase.get("predict", 0) > max(NOTABLE * limit, 0.6 * grown):
        name, text = "growth in predict", "memory was taken while predicting"
    elif grown < NOTABLE * limit:
        name, text = "plateau", "memory did not grow during training"
    elif steady and top.step > 8:
        name, text = "growth per step", "memory grows with every training step"
    elif top.step <= 3:
        name, text = "peak at the first steps", "memory was taken by the first training steps"
    else:
        name, text = "growth in training", "memory grew during training, not evenly"
    return Shape(name, text, slope, by_phase, top.used, top.phase)


def _growth_by_phase(points: Sequence[Point]) -> dict[str, int]:
    """New highs only: memory that falls and comes back is not counted twice."""
    found: dict[str, int] = {}
    high = 0
    for before, after in itertools.pairwise(points):
        high = max(high, before.used)
        if after.used > high:
            found[after.phase] = found.get(after.phase, 0) + after.used - high
    return found


def _slope(points: Sequence[Point]) -> tuple[float, bool]:
    """Bytes per step by least squares over the later part, and whether the line explains the points."""
    points = points[len(points) // 5 :]
    if len(points) < 4 or points[-1].step - points[0].step < 4:
        return 0.0, False
    xs, ys = [float(p.step) for p in points], [float(p.used) for p in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) ** 2 for x in xs)
    if not over:
        return 0.0, False
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / over
    around = sum((y - mean_y) ** 2 for y in ys)
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys))
    return slope, around > 0 and slope > 0 and 1 - left / around > 0.8


def _falls(points: Sequence[Point], limit: int) -> int:
    """How often memory fell notably from a high."""
    falls, high = 0, 0
    for point in points[:-1]:  # the last one may be of a tree that is ending
        high = max(high, point.used)
        if high - point.used > 2 * NOTABLE * limit:
            falls, high = falls + 1, point.used
    return falls

"""Memory over the number of rows, from a few measured points.

Covers: reading a peak off the points, the most rows within a limit, and which size to measure next.
Does not cover: measuring (child.py), what the numbers mean for a job (result.py).

Between two points the curve is a straight line, beyond the last one the last line goes on: peak = a + b * rows. Points
lie a factor of four apart, because the error of one point grows with the distance over which its line is drawn out:
measured on TensorFlow, points at 64 and 128 rows missed 512 rows by 15 %, points at 16 and 64 by 3 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import InvalidInput
from penstock.guard.recovery.ladder import Line

FIRST_ROWS = 8
"""Fewer rows say little: a tensor below 128 KiB comes from the heap, and kernels' working memory outweighs it."""
STEP = 4
MEASURABLE = 8_000_000
"""Where two sizes differ by less, larger ones are tried while their steps are quick: the heap hides small tensors."""
STEPS = 4.0
"""Steps that measuring one size takes."""
MOST_ROWS = 1 << 30


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes at some numbers of rows, rising in both. One point is a constant."""

    points: tuple[tuple[int, float], ...]

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> Curve:
        """A curve through measured points; where a smaller size showed more than a larger one, the larger is right."""
        if not points:
            raise InvalidInput("A curve needs at least one point.")
        rising: list[tuple[int, float]] = []
        for rows, nbytes in sorted(points, reverse=True):
            if rising and rising[-1][0] == rows:
                continue  # of two measurements of one size the higher came first
            rising.append((rows, min(nbytes, rising[-1][1]) if rising else nbytes))
        return cls(tuple(reversed(rising)))

    @property
    def slope(self) -> float:
        """Bytes that one more row takes, beyond the measured sizes."""
        return self._slope(len(self.points) - 1)

    def at(self, rows: int) -> float:
        """The bytes for so many rows."""
        upper = next((i for i, (known, _) in enumerate(self.points) if known >= rows), len(self.points) - 1)
        known, nbytes = self.points[upper]
        # Below the first point the first line goes on, above the last one the last.
        return nbytes + (rows - known) * self._slope(max(upper, 1))

    def rows_within(self, nbytes: float) -> int:
        """The most rows that take at most `nbytes`; 0 if one row takes more."""
        if self.at(1) > nbytes:
            return 0
        low, high = 1, 2
        while high < MOST_ROWS and self.at(high) <= nbytes:
            low, high = high, high * 2
        if high >= MOST_ROWS:
            return MOST_ROWS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle) <= nbytes else (low, middle)
        return low

    def line(self) -> Line:
        """The last line, as recovery uses it."""
        rows, nbytes = self.points[-1]
        return Line(base=nbytes - self.slope * rows, per_sample=self.slope)

    def _slope(self, upper: int) -> float:
        if len(self.points) < 2:
            return 0.0
        (a, low), (b, high) = self.points[upper - 1], self.points[upper]
        return (high - low) / (b - a)


@dataclass(frozen=True, slots=True)
class Tried:
    """One size that was measured: bytes above what was there before, CPU seconds of it all and of one step."""

    rows: int
    nbytes: float
    seconds: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Means:
    """What probing may use: no more rows than `top`, bytes above the base, CPU seconds.

    The first `fewest` sizes are measured even if that takes longer, in every setting: kernels' working memory rises
    faster at few rows. Of one run of a rematerialised CNN on TensorFlow the line through 8 and 32 rows was 26 % over at
    256 rows, that through 32 and 64 rows 3 %. CPU seconds, so that a busy machine says the same.
    """

    top: int
    room: float
    seconds: float
    fewest: int = 3


def next_rows(tried: Sequence[Tried], means: Means) -> int | None:
    """The next size to measure, or None when enough is known or the next one would cost too much."""
    if not tried:
        return min(FIRST_ROWS, means.top)
    last = tried[-1]
    if last.rows >= means.top:
        return None
    rows = min(last.rows * STEP, means.top)
    # A last step of less than half a factor would give a short line; go to the top at once instead.
    rows = means.top if means.top < rows * STEP / 2 else rows
    if _nbytes_at(tried, rows) > means.room:
        return None
    if sum(one.seconds for one in tried) + _seconds_at(last, rows) <= means.seconds:
        return rows
    flat = len(tried) > 1 and last.nbytes - tried[-2].nbytes < MEASURABLE
    if flat and STEPS * last.step_s * rows / last.rows <= means.seconds:
        return rows
    return min(rows, last.rows * 2) if len(tried) < means.fewest else None


def scaled(
    measured: Sequence[tuple[int, float]], compiler: tuple[float, float], rows: int, base: float
) -> tuple[int, float]:
    """A point beyond the measured ones, from what the compiler says for the last measured size and for `rows`.

    The compiler counts tensors; what is measured also has a kernel's working memory. Their ratio is carried over. A
    ratio below one is noise: what the program plans it also takes.
    """
    last_rows, last = measured[-1]
    at_last, at_rows = compiler
    grown = last - base
    if len(measured) > 1:
        before_rows, before = measured[-2]
        grown = (last - before) / (last_rows - before_rows) * last_rows
    ratio = grown / at_last if at_last > 0 else 1.0
    return rows, last + max(1.0, min(3.0, ratio)) * (at_rows - at_last)


def _nbytes_at(tried: Sequence[Tried], rows: int) -> float:
    if len(tried) < 2:  # nothing known yet: in proportion is the most it can be
        return tried[-1].nbytes * rows / tried[-1].rows
    return Curve.through([(one.rows, one.nbytes) for one in tried]).at(rows)


def _seconds_at(last: Tried, rows: int) -> float:
    """Steps take time in proportion to their rows; what else was spent (compiling, tidying) stays the same."""
    steps = min(STEPS * last.step_s, last.seconds)
    return last.seconds - steps + steps * rows / last.rows

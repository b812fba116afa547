"""From a million values to a few hundred: everything that is drawn over time, in bounded memory.

Covers: a grid of time buckets that grows coarser as the run grows longer; numbers and memory samples on it.
Does not cover: which events carry which numbers (digest.py), drawing (watch/page/charts.js).

All series of a run share one grid, which depends on the run's times alone. When a value falls beyond the last bucket,
neighbours are merged and each bucket is twice as wide. So the grid is the same for every reader of the file; a reader
that knows "level 3, up to bucket 120" can be sent only what came after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_BUCKETS = 512
FIRST_WIDTH_S = 0.5
"""Progress is reported about twice a second; finer buckets would stay empty."""
MOST_SERIES = 64
MOST_HOLDERS = 32
REST = "smaller holders"


class Bucket:
    """The numbers that fell into one stretch of time."""

    __slots__ = ("count", "high", "last", "low", "total")

    def __init__(self, value: float) -> None:
        self.low = self.high = self.total = self.last = value
        self.count = 1

    def add(self, value: float) -> None:
        """One more number."""
        if value < self.low:
            self.low = value
        elif value > self.high:
            self.high = value
        self.total += value
        self.last = value
        self.count += 1

    def merge(self, later: Bucket) -> None:
        """Take in the bucket that follows."""
        self.low, self.high = min(self.low, later.low), max(self.high, later.high)
        self.total += later.total
        self.count += later.count
        self.last = later.last

    @property
    def mean(self) -> float:
        """The average, which shows what a band from low to high hides."""
        return self.total / self.count


class MemoryBucket:
    """The sample with the most memory in use of one stretch of time: a peak is never averaged away."""

    __slots__ = ("holders", "limit", "used")

    def __init__(self, used: int, limit: int, holders: dict[str, int]) -> None:
        self.used, self.limit, self.holders = used, limit, holders

    def merge(self, later: MemoryBucket) -> None:
        """Take in the bucket that follows."""
        if later.used >= self.used:
            self.used, self.holders = later.used, later.holders
        self.limit = later.limit


class Grid:
    """Buckets of equal width from the run's start on. `level` counts how often they were merged."""

    def __init__(self, most_buckets: int = MOST_BUCKETS) -> None:
        self.most_buckets = most_buckets
        self.level = 0
        self.last_index = -1
        self.numbers: dict[str, dict[int, Bucket]] = {}
        self.memory: dict[int, MemoryBucket] = {}
        self.holders: dict[str, int] = {}
        """Every holder ever seen, with the most that it held; bounded."""
        self.not_finite: dict[str, int] = {}
        self._width_s = FIRST_WIDTH_S

    @property
    def width_s(self) -> float:
        """Seconds in a bucket."""
        return self._width_s

    def add(self, at_s: float, name: str, value: float) -> None:
        """A number at a time after the run's start. NaN and infinities are counted, and leave a gap."""
        if not math.isfinite(value):
            if name in self.not_finite or len(self.not_finite) < MOST_SERIES:
                self.not_finite[name] = self.not_finite.get(name, 0) + 1
            return
        series = self.numbers.get(name)
        if series is None:
            if len(self.numbers) >= MOST_SERIES:
                return
            series = self.numbers[name] = {}
        index = int(at_s / self._width_s)
        if index >= self.most_buckets:
            index = self._coarsen_for(at_s)
            series = self.numbers[name]
        if index > self.last_index:
            self.last_index = index
        bucket = series.get(index)
        if bucket is None:
            series[index] = Bucket(value)
        else:
            bucket.add(value)

    def add_memory(self, at_s: float, used: int, limit: int, holders: Mapping[str, int]) -> None:
        """A memory sample at a time after the run's start."""
        index = int(at_s / self._width_s)
        if index >= self.most_buckets:
            index = self._coarsen_for(at_s)
        self.last_index = max(self.last_index, index)
        sample = MemoryBucket(used, limit, self._known(holders))
        if index in self.memory:
            self.memory[index].merge(sample)
        else:
            self.memory[index] = sample

    def _known(self, holders: Mapping[str, int]) -> dict[str, int]:
        """Holders by name; once there are too many names, new ones share one."""
        known: dict[str, int] = {}
        for name, nbytes in holders.items():
            if name not in self.holders and len(self.holders) >= MOST_HOLDERS:
                name = REST
            known[name] = known.get(name, 0) + nbytes
        for name, nbytes in known.items():
            self.holders[name] = max(nbytes, self.holders.get(name, 0))
        return known

    def _coarsen_for(self, at_s: float) -> int:
        """Merge neighbours until the time fits; its bucket."""
        while at_s / self._width_s >= self.most_buckets:
            self._width_s *= 2
            self.level += 1
            self.last_index //= 2
            self.memory = _halved(self.memory)
            self.numbers = {name: _halved(series) for name, series in self.numbers.items()}
        return int(at_s / self._width_s)


def _halved(series: dict[int, Any]) -> dict[int, Any]:
    """The same buckets, two and two together."""
    merged: dict[int, Any] = {}
    for index in sorted(series):
        half = index // 2
        if half in merged:
            merged[half].merge(series[index])
        else:
            merged[half] = series[index]
    return merged

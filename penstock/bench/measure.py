"""Runs of a pipeline with and without a consumer.

Covers: counting rows, waiting and processor time, on files in memory and on files that are not.
Does not cover: the parts alone (limits.py), what follows (verdict.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from penstock.bench.facts import Flow
from penstock.core.tree import flatten
from penstock.dataset import Dataset

_LEAST_STEPS = 3
_PATIENCE = 3
"""Times as long as was asked for, after which passes that are all start-up are given up."""


def rows_of_batch(batch: Any) -> int:
    """Rows along the first axis."""
    _, leaves = flatten(batch)
    return len(next(iter(leaves.values())))


def nbytes_of_batch(batch: Any) -> int:
    """Bytes of a batch's arrays; text and bytes count by their length."""
    total = 0
    for column in flatten(batch)[1].values():
        array = np.asarray(column)
        total += (
            sum(len(v) if hasattr(v, "__len__") else 8 for v in array.flat) if array.dtype == object else array.nbytes
        )
    return total


class _Counter:
    """Adds up what batches bring, from the first on, which is start-up and does not count."""

    def __init__(self, step_s: float, seconds: float) -> None:
        self._step_s, self._seconds = step_s, seconds
        self.rows, self.steps = 0, 0
        self.wall_s = self.waited_s = self.cpu_s = 0.0
        self.first_s = 0.0

    @property
    def enough(self) -> bool:
        return self.wall_s >= self._seconds and self.steps >= _LEAST_STEPS

    def take(self, batches: Iterator[Any]) -> bool:
        """Consume until there is enough; False if the data ended before."""
        before = time.perf_counter()
        if next(batches, None) is None:
            return False
        self.first_s += time.perf_counter() - before
        cpu = time.process_time()
        while not self.enough:
            before = time.perf_counter()
            batch = next(batches, None)
            taken = time.perf_counter()
            if batch is None:
                self.cpu_s += time.process_time() - cpu
                return False
            self.rows += rows_of_batch(batch)
            del batch
            if self._step_s > 0:
                time.sleep(self._step_s)  # leaves its core to the data side, as a consumer on an accelerator does
            self.steps += 1
            self.waited_s += taken - before
            self.wall_s += time.perf_counter() - before
        self.cpu_s += time.process_time() - cpu
        return True

    @property
    def flow(self) -> Flow:
        return Flow(self.rows, self.wall_s, self.waited_s, self.cpu_s)


def steady_flow(dataset: Dataset, seconds: float, step_s: float = 0.0) -> Flow:
    """Pass after pass without a pause, as training goes on; files are in memory after the first."""
    counter = _Counter(step_s, seconds)
    with closing(iter(dataset.repeat())) as batches:
        counter.take(batches)
    return counter.flow


def from_storage(
    dataset: Dataset, seconds: float, forget: Callable[[], bool], step_s: float = 0.0, most_passes: int = 50
) -> Flow | None:
    """Passes before each of which the files leave memory.

    None if they stay there; and None if most of the time went by before the first batches, which do not count: reading
    ahead has then read nearly everything, and the rest would come out as fast as memory.
    """
    counter = _Counter(step_s, seconds)
    for _ in range(most_passes):
        if not forget():
            return None
        with closing(iter(dataset)) as batches:
            if counter.take(batches):
                break
        if not counter.rows:
            return None
        if counter.first_s + counter.wall_s > _PATIENCE * seconds + 1:
            break
    return counter.flow if step_s or counter.wall_s >= counter.first_s else None


def fill(dataset: Dataset) -> None:
    """One pass, so that a cache below has everything."""
    with iter(dataset) as batches:
        for batch in batches:
            del batch


def synthetic(batch: Any, seconds: float, step_s: float) -> Flow:
    """The consumer alone: the same batch again and again."""
    counter = _Counter(step_s, seconds)

    def endless() -> Iterator[Any]:
        while True:
            yield batch

    counter.take(endless())
    return counter.flow

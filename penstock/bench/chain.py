"""The pipeline that is measured: shuffle, the user's function, batches.

Covers: what was asked for, and building chains of it on any dataset.
Does not cover: reading (penstock/read), running and measuring (measure.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.source import RowSource
from penstock.dataset import Dataset
from penstock.engine.arrange import scatters
from penstock.engine.segment import source_of
from penstock.engine.streams.window_shuffle import Width


@dataclass(frozen=True)
class BenchPlan:
    """What to measure, and for how long."""

    path: str
    batch: int = 32
    size: int | None = None
    function: Callable[..., Any] | None = None
    step_s: float = 0.05
    seconds: float = 20.0
    shuffle: bool = True
    trials: bool = True
    query: str | None = None
    """The table or select of a database."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidInput(f"batch must be at least 1, not {self.batch}.")
        if self.seconds <= 0 or self.step_s < 0:
            raise InvalidInput("seconds must be above 0 and the consumer's step at least 0.")

    def share(self, of_twenty: float) -> float:
        """Seconds for a measurement that gets so many of every twenty."""
        return self.seconds * of_twenty / 20

    def chain(self, dataset: Dataset, *, function: bool = True) -> Dataset:
        """The pipeline on a dataset of samples."""
        if self.shuffle:
            dataset = dataset.shuffle(seed=1, window=_window(dataset))
        if self.function is not None and function:
            dataset = dataset.map(self.function)
        return dataset.batch(self.batch)


def _window(dataset: Dataset) -> str | None:
    """A window where a shuffle would copy the rows to local disk: the copy would be measured, not the storage."""
    source = source_of(dataset.node)
    if source is None or isinstance(source, RowSource) or scatters(source):
        return None
    return f"{Width().nbytes}B"

"""Judging a model on data that it was not trained on.

Covers: accuracy, mean squared error, each output by itself and all of them as one number to rank by.
Does not cover: memory and time (measure.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.compress.data import (
    Array,
    Batches,
    Inputs,
    Outputs,
    Task,
    arrays,
    by_output,
    count,
    labels,
    pairs,
    task_of,
)
from penstock.core.errors import InvalidInput


@dataclass(frozen=True)
class Score:
    """A held-out result. Higher is better for accuracy, lower for mse.

    A model of several outputs has one score for each in `parts`; its own value is their mean: of accuracies, of errors,
    or, where both occur, of accuracies and of the share of variance explained (r2), so that units do not matter.
    """

    metric: str
    value: float
    rows: int
    r2: float | None = None
    parts: dict[str, Score] = field(default_factory=dict)

    @property
    def merit(self) -> float:
        """The value turned so that higher is always better."""
        return -self.value if self.metric in ("mse", "mean mse") else self.value


@dataclass
class _Sum:
    """What has been seen of one output."""

    task: Task
    right: float = 0.0
    values: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, made: Array, y: Array) -> None:
        known = labels(y, self.task)
        if self.task == "classify":
            self.right += float((classes(made) == known).sum())
            self.values += known.size
            return
        known = known.reshape(made.shape).astype(np.float64)
        self.right += float(np.square(made - known).sum())
        self.values += known.size
        self.total += float(known.sum())
        self.squares += float(np.square(known).sum())

    def score(self, rows: int) -> Score:
        value = self.right / max(self.values, 1)
        if self.task == "classify":
            return Score("accuracy", value, rows)
        variance = self.squares / self.values - (self.total / self.values) ** 2
        return Score("mse", value, rows, r2=1 - value / variance if variance > 0 else None)


def score(predict: Callable[[Inputs], Outputs], batches: Batches) -> Score:
    """Accuracy (classes) or mean squared error (numbers) of every output, over one streaming pass."""
    sums: dict[str, _Sum] = {}
    seen = 0
    for x, y in pairs(batches, "held_out"):
        made = {name: part.astype(np.float64) for name, part in arrays(predict(x)).items()}
        for name, known in by_output(y, made).items():
            sums.setdefault(name, _Sum(task_of(known))).add(made[name], known)
        seen += count(x)
    if not sums:
        raise InvalidInput("held_out holds no batch, so nothing can be judged.")
    parts = {name: found.score(seen) for name, found in sums.items()}
    return next(iter(parts.values())) if len(parts) == 1 else together(parts)


def together(parts: dict[str, Score]) -> Score:
    """One score for several outputs."""
    rows = next(iter(parts.values())).rows
    metrics = {part.metric for part in parts.values()}
    if len(metrics) == 1:
        return Score(f"mean {metrics.pop()}", float(np.mean([p.value for p in parts.values()])), rows, parts=parts)
    shares = [p.value if p.metric == "accuracy" else (p.r2 if p.r2 is not None else 0.0) for p in parts.values()]
    return Score("mean of accuracy and r2", float(np.mean(shares)), rows, parts=parts)


def classes(made: Array) -> Array:
    """Class numbers from outputs. A single output is a logit when it leaves [0, 1], else a probability."""
    if made.shape[-1] > 1:
        return np.asarray(made.argmax(axis=-1))
    flat = made[..., 0]
    return np.asarray(flat > (0.0 if flat.min() < 0 or flat.max() > 1 else 0.5)).astype(np.int64)

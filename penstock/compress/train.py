"""Training a model on streamed batches.

Covers: fine-tuning with labels or a teacher, a loss for every output, how a model's outputs are to be read.
Does not cover: memory recovery while training large models (guard/), what a step does in a framework (framework.py),
judging (score.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.compress.data import (
    Array,
    Batches,
    Inputs,
    Outputs,
    arrays,
    by_output,
    count,
    first,
    labels,
    pairs,
    task_of,
)
from penstock.compress.framework import Framework, Goals, Loss, Output
from penstock.core.errors import InvalidInput
from penstock.core.events import events

Teach = Callable[[Inputs], Outputs]


@dataclass(frozen=True)
class Fit:
    """How long and how fast to train. A time limit ends training between two steps.

    `loss_weights` gives outputs their share of the sum, by name: {"age": 0.2}. Outputs that it does not name count 1.
    """

    epochs: int = 1
    learning_rate: float = 1e-3
    time_limit_s: float | None = None
    loss_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise InvalidInput(f"epochs must be 0 or more, not {self.epochs}.")
        if not self.learning_rate > 0:
            raise InvalidInput(f"learning_rate must be above 0, not {self.learning_rate}.")
        if any(weight < 0 for weight in self.loss_weights.values()):
            raise InvalidInput(f"loss_weights must be 0 or more, not {dict(self.loss_weights)}.")


def goals_of(framework: Framework, model: Any, x: Inputs, y: Inputs) -> dict[str, Loss]:
    """A loss for every output: from its labels, and from its last layer, else from what it gives."""
    made, endings = arrays(framework.predict(model, x)), framework.endings(model)
    targets = by_output(y, made)
    return {name: Loss(task_of(targets[name]), _output(endings.get(name), part)) for name, part in made.items()}


def _output(ending: str | None, made: Array) -> Output:
    """Whether an output is logits or probabilities."""
    if ending is not None:
        return "logits" if ending == "linear" else "probabilities"
    made = made.astype(np.float64)
    sums_to_one = made.ndim >= 2 and made.shape[-1] > 1 and bool(np.allclose(made.sum(-1), 1.0, atol=1e-3))
    return "probabilities" if sums_to_one and bool((made >= 0).all()) else "logits"


def fine_tune(
    framework: Framework,
    model: Any,
    batches: Batches,
    fit: Fit,
    *,
    goals: Goals | None = None,
    teach: Teach | None = None,
    after_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train a model in place; returns the mean loss of each epoch. `after_step` runs when weights have moved."""
    goals = _weighed(goals if goals is not None else goals_of(framework, model, *first(batches)), fit)
    trainer = framework.trainer(model, goals, fit.learning_rate)
    deadline = None if fit.time_limit_s is None else time.monotonic() + fit.time_limit_s
    history = []
    for epoch in range(fit.epochs):
        total, seen = 0.0, 0
        for x, y in pairs(batches):
            targets = {name: labels(part, goals[name].task) for name, part in by_output(y, goals).items()}
            soft = by_output(teach(x), goals, "teacher's outputs") if teach is not None else None
            total += trainer.step(x, targets, soft) * count(x)
            seen += count(x)
            if after_step is not None:
                after_step()
            if deadline is not None and time.monotonic() > deadline:
                break
        history.append(total / max(seen, 1))
        events.emit("shrink.epoch", framework.name, epoch=epoch, loss=history[-1], rows=seen)
        if deadline is not None and time.monotonic() > deadline:
            break
    return history


def _weighed(goals: Goals, fit: Fit) -> dict[str, Loss]:
    unknown = set(fit.loss_weights) - set(goals)
    if unknown:
        raise InvalidInput(f"loss_weights names {sorted(unknown)}; the model's outputs are {sorted(goals)}.")
    return {name: replace(loss, weight=fit.loss_weights.get(name, loss.weight)) for name, loss in goals.items()}

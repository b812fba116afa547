"""Evaluation and prediction that keep nothing but the result.

Covers: `evaluate` and `predict` on streams, in parts that fit.
Does not cover: the files that predictions go to (guard/write_predictions.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.guard.epochs import refuse_arrays
from penstock.guard.recovery.step import Control

if TYPE_CHECKING:
    import keras

    from penstock.guard.keras.step import EvalStep, PredictStep


def evaluate(
    model: keras.Model,
    ds: Iterable[Any],
    *,
    steps: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    micro_batch: int | None = None,
) -> dict[str, float]:
    """The model's loss and metrics over a dataset, as a dict. Nothing is kept between batches but the metrics.

    >>> evaluate(model, ds)["loss"]  # doctest: +SKIP
    0.25
    """
    keras_model, keras_step = _frameworks("evaluate()")
    keras_model.check(model)
    refuse_arrays(ds, "ds")
    batches = iter(ds)
    first = next(batches, None)
    if first is None:
        raise InvalidInput("The dataset has no batches.")
    shown = keras_model.unpack(first, class_weight)
    keras_model.check_batch(model, shown)
    with keras_model.scope_of(model):
        keras_model.build(model, shown)
        step = keras_step.EvalStep(keras_step.make_backend(model))
        control = Control(who=f"{model.name} evaluation", first_micro=micro_batch)
        return evaluate_with(step, control, _joined(first, batches), steps=steps, class_weight=class_weight)


def evaluate_with(
    step: EvalStep,
    control: Control,
    ds: Iterable[Any],
    *,
    steps: int | None,
    class_weight: Mapping[int, float] | None,
    merge: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Run an evaluation with steps that exist already. `merge` adds up the metrics of several ranks."""
    keras_model, keras_step = _frameworks("evaluate()")
    model = step.backend.program.model
    model.reset_metrics()
    count = 0
    for batch in islice(iter(ds), steps):
        control.run(step, keras_model.unpack(batch, class_weight))
        count += 1
    if merge is not None:
        merge()
    elif not count:
        raise InvalidInput("The validation dataset has no batches.")
    logs: dict[str, float] = keras_step.as_floats(model.get_metrics_result())
    return logs


def predict(
    model: keras.Model,
    ds: Iterable[Any],
    *,
    out: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    micro_batch: int | None = None,
) -> Any:
    """Predictions of a Keras model, batch by batch.

    With `out` they are written to that .parquet or .npy file as they come, and the number of rows is returned. Without
    it an iterator of each batch's predictions is returned. Nothing is accumulated either way.

    >>> rows = predict(model, ds, out="predictions.parquet")  # doctest: +SKIP
    """
    keras_model, _ = _frameworks("predict()")
    keras_model.check_predicts(model)
    refuse_arrays(ds, "ds")
    found = _predictions(model, islice(iter(ds), steps), micro_batch)
    if out is None:
        return found
    from penstock.guard.write_predictions import write_predictions

    return write_predictions(found, out)


def _predictions(model: keras.Model, ds: Iterable[Any], micro_batch: int | None) -> Iterator[Any]:
    keras_model, keras_step = _frameworks("predict()")
    control = Control(who=f"{model.name} prediction", first_micro=micro_batch)
    step: PredictStep | None = None
    for batch in ds:
        x = batch[0] if isinstance(batch, tuple) else batch
        if step is None:
            if not model.built:
                with keras_model.scope_of(model):
                    model(_first_row(x))
            step = keras_step.PredictStep(keras_step.make_backend(model))
        control.run(step, x)
        yield step.outputs


def _first_row(x: Any) -> Any:
    from penstock.core.tree import flatten, unflatten

    tree, leaves = flatten(x)
    return unflatten(tree, lambda name: leaves[name][:1])


def _joined(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _frameworks(what: str) -> tuple[Any, Any]:
    try:
        from penstock.guard.keras import parts as keras_model
        from penstock.guard.keras import step as keras_step
    except ImportError as error:
        raise MissingExtra(what=what, extra="keras") from error
    return keras_model, keras_step

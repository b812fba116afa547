"""A Keras step in parts, on any backend.

Covers: refusals by name, building, and the loss of one part as a function that assigns nothing.
Does not cover: gradients and the optimizer, which differ by backend (backends/).

Keras' own `gradient_accumulation_steps` is not the same mathematics (schedules see micro-steps, EMA and ragged ends go
wrong, it cannot change during a run), so it is not used. Everything that a training step changes besides weights
(metrics, batch statistics, seeds) flows through the function as values and is written back once, with the weights.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.feed.keras import weights_of
from penstock.guard.keras import private
from penstock.guard.keras.loss import LossTerms
from penstock.guard.recovery.microbatch import count_rows

Values = list[Any]


def check(model: keras.Model, *, processes: bool = False) -> None:
    """Refuse, by name, models whose step cannot be taken in parts with the same result.

    `processes` allows models that are spread over several processes.
    """
    if not isinstance(model, keras.Model):
        raise InvalidInput(f"fit() needs a keras.Model, not a {type(model).__name__}. For PyTorch loops use Guard.")
    if not model.compiled:
        raise InvalidInput("The model is not compiled. Call model.compile(optimizer=..., loss=...) first.")
    for name in ("train_step", "test_step"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            why = "whose gradients the guard cannot split" if name == "train_step" else "which the guard would not call"
            raise InvalidInput(
                f"{type(model).__name__} has its own {name}, {why}. Override compute_loss and compute_metrics instead, "
                f"or call model.fit() without the guard."
            )
    if model.optimizer is None:
        raise InvalidInput("The model has no optimizer. Compile it with one.")
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if inner.gradient_accumulation_steps:
        raise InvalidInput(
            "The optimizer has gradient_accumulation_steps. The guard accumulates by itself: remove it and make the "
            "batch that many times larger."
        )
    for loss in private.given_losses(model):
        if getattr(loss, "reduction", "mean") in (None, "none"):
            raise InvalidInput(f"The loss {loss.name!r} has reduction 'none'; use a mean or a sum.")
    if model.steps_per_execution != 1:
        raise InvalidInput("steps_per_execution above 1 hides steps from the guard. Compile without it.")
    refuse_distribution(processes=processes)
    refuse_strategy(model)


def refuse_distribution(*, processes: bool) -> None:
    """Refuse what `keras.distribution` does not do: it is silent where a backend does not support it."""
    found = keras.distribution.distribution()
    if found is None:
        return
    kind, name = type(found).__name__, keras.backend.backend()
    if name != "jax":
        raise InvalidInput(
            f"{kind} is set, and keras.distribution does nothing on the {name} backend: the model would train on one "
            f"device. Unset it, and start ranks with torchrun, or use KERAS_BACKEND=jax. See docs/distribute.md."
        )
    if sys.modules["jax"].process_count() > 1 and not processes:
        raise InvalidInput(f"{kind} is set over several processes: give validation_data to fit(), which works there.")


MIRRORS = ("MirroredStrategy", "OneDeviceStrategy")
"""The strategies of tf.distribute whose devices are all in this process."""


def scope_of(model: keras.Model) -> AbstractContextManager[Any]:
    """The scope of the model's strategy: what is made and read for the model belongs there."""
    strategy = private.strategy_of(model)
    scope: AbstractContextManager[Any] = contextlib.nullcontext() if strategy is None else strategy.scope()
    return scope


def refuse_strategy(model: keras.Model) -> None:
    """Refuse tf.distribute where the model's copies are in several processes, or where it has none."""
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return
    around = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    under, optimizer = private.strategy_of(model), getattr(model, "optimizer", None)
    if under is not None and type(under).__name__ not in MIRRORS:
        raise InvalidInput(
            f"The model was made under {type(under).__name__}, and the guard steps models of MirroredStrategy. For "
            f"several processes see docs/distribute.md."
        )
    apart = around is not None and around is not under
    if apart or (optimizer is not None and private.strategy_of(optimizer) is not under):
        name = type(under or around or private.strategy_of(optimizer)).__name__
        raise InvalidInput(
            f"The model, its optimizer and the call do not share one {name}: make and compile the model inside of "
            f"strategy.scope(), its optimizer too."
        )


def check_predicts(model: keras.Model) -> None:
    """Refuse, by name, what would be predicted otherwise than the model's author meant it."""
    if not isinstance(model, keras.Model):
        raise InvalidInput(f"predict() needs a keras.Model, not a {type(model).__name__}.")
    refuse_strategy(model)
    if type(model).predict_step is not keras.Model.predict_step:
        raise InvalidInput(
            f"{type(model).__name__} has its own predict_step, which the guard would not call. Move it into call(), or "
            f"use model.predict()."
        )


def check_batch(model: keras.Model, batch: tuple[Any, Any, Any]) -> None:
    """Say what is wrong with a batch before Keras meets it: it would speak of dtypes and of its own frames."""
    count_rows(batch)
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    if batch[1] is None and private.has_loss(model) and not own_loss:
        raise InvalidInput(
            "The batches have no labels, and the model was compiled with a loss. Give batches (x, y) or "
            "(x, y, sample_weight) as tuples."
        )


def build(model: keras.Model, batch: tuple[Any, Any, Any]) -> None:
    """Create weights, metrics and optimizer state before the first step, from a batch's shapes."""
    private.build(model, batch)
    private.check_names(model)


def unpack(batch: Any, class_weight: Mapping[int, float] | None = None) -> tuple[Any, Any, Any]:
    """A batch as x, y and sample weights; class weights become sample weights, as in Keras."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if class_weight is None:
        return x, y, weights
    if weights is not None:
        raise InvalidInput("The data has sample weights already; class_weight cannot be given as well.")
    if isinstance(y, (dict, tuple, list)):
        raise InvalidInput("class_weight needs a single output. Give sample weights in the data instead.")
    return x, y, weights_of(np.asarray(y), class_weight).astype(keras.config.floatx(), copy=False)


class Program:
    """A compiled model's loss as a pure function of weights, state and data."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.terms = LossTerms(model)
        self.trainable = list(model.trainable_variables)
        known: dict[int, Any] = {}
        for variable in [*model.non_trainable_variables, *model.metrics_variables]:
            known.setdefault(id(variable), variable)
        self.state = list(known.values())

    def state_values(self) -> Values:
        """Metrics, statistics and seeds as they are now. TensorFlow's are read: a graph takes them as plain tensors."""
        values = [variable.value for variable in self.state]
        return [value.read_value() if hasattr(value, "read_value") else value for value in values]

    def array_of(self, variable: Any) -> np.ndarray:
        """A copy of a variable on the host, whole wherever its parts are."""
        return np.array(keras.ops.convert_to_numpy(variable.value))

    def loss(
        self, weights: Values, state: Values, data: tuple[Any, Any, Any], ratios: Any, training: bool
    ) -> tuple[Any, dict[str, Any], Values]:
        """The loss of one part, the metrics so far, and the state after it."""
        x, y, sample_weight = data
        model = self.model
        with self._scope(weights, state) as scope, self.terms.scaled_by(ratios):
            y_pred = self._call(x, training)
            loss = private.compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
            private.track_loss(model, _detached(loss), _rows(x))
            logs = model.compute_metrics(x, y, _map(_detached, y_pred), sample_weight=sample_weight)
        return loss, logs, [_detached(scope.get_current_value(variable)) for variable in self.state]

    def counts(self, weights: Values, state: Values, data: tuple[Any, Any, Any], training: bool) -> Any:
        """What each loss divides by: the sum of its masks or sample weights in this part."""
        x, y, sample_weight = data
        with self._scope(weights, state), self.terms.counting() as found:
            y_pred = self._call(x, training)
            private.compute_loss(self.model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
            return keras.ops.stack([keras.ops.cast(count, "float32") for count in found])

    def predict(self, weights: Values, state: Values, x: Any) -> Any:
        """The model's outputs for one part."""
        with self._scope(weights, state):
            return self._call(x, training=False)

    def batch_norms(self) -> list[str]:
        """Names of layers that look at the whole batch."""
        return [
            layer.name
            for layer in private.all_layers(self.model)
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]

    def _scope(self, weights: Values, state: Values) -> keras.StatelessScope:
        scope = keras.StatelessScope(collect_losses=True)
        # Filled directly: the constructor would convert and check every value again on every step.
        pairs = zip([*self.trainable, *self.state], [*weights, *state], strict=True)
        scope.state_mapping.update({id(variable): value for variable, value in pairs})
        return scope

    def _call(self, x: Any, training: bool) -> Any:
        if private.takes_training(self.model):
            return self.model(x, training=training)
        return self.model(x)


def set_precision(model: keras.Model, policy: str) -> None:
    """Compute by this policy from now on; variables keep their type.

    float16 has so little range that small gradients vanish: the optimizer is wrapped in Keras' loss scaling for it.
    """
    for layer in private.all_layers(model):
        if layer.variable_dtype == "float32" and layer.dtype_policy.name != policy:
            layer.dtype_policy = keras.DTypePolicy(policy)
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if policy == "mixed_float16" and not scales:
        model.optimizer = keras.optimizers.LossScaleOptimizer(model.optimizer)


def lower_precision(model: keras.Model) -> None:
    """Compute in bfloat16 from now on."""
    set_precision(model, "mixed_bfloat16")


def warn_unseen(model: keras.Model) -> None:
    """Say what the guard lets the user decide but cannot keep equal."""
    if type(model).compute_loss is not keras.Model.compute_loss:
        warnings.warn(
            f"{type(model).__name__} has its own compute_loss: parts are weighted by their rows, which is right for "
            f"a mean over samples.",
            stacklevel=3,
        )


def _rows(x: Any) -> Any:
    return keras.ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]


def _map(function: Any, structure: Any) -> Any:
    return keras.tree.map_structure(function, structure)


def _detached(value: Any) -> Any:
    """The value without its history: on torch a metric would otherwise keep a whole step's activations."""
    if keras.backend.backend() != "torch":
        return value
    found = value.detach()
    if hasattr(value, "_keras_mask"):
        found._keras_mask = value._keras_mask
    return found

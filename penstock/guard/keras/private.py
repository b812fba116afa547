"""What the guard uses of Keras beyond its public interface, all of it, and the versions in which that is known to work.

Covers: names under `keras.src` and underscored attributes of models, layers and variables; a clear refusal where a
version lacks one; keeping TensorFlow out of processes on other backends.
Does not cover: Keras' data adapter, which the feed is (feed/keras.py).

Why private names at all: a step in parts needs the loss apart from its reduction, the layers inside layers, and
variables that are read and pointed elsewhere without a check each. Keras has no public way to any of these.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras

from penstock.core.errors import InvalidInput

FIRST, LAST = (3, 8), (3, 15)
"""The oldest and the newest Keras on which the contract tests have passed."""

MODEL_NAMES = (
    "_call_has_training_arg", "_compute_loss", "_flatten_layers", "_symbolic_build",
)  # fmt: skip
COMPILED_NAMES = ("_compile_config", "_compile_loss", "_compile_metrics", "_loss_tracker")
VARIABLE_NAMES = ("_direct_assign", "_value")


def refusal(why: str) -> InvalidInput:
    """The error that says which Keras the guard knows."""
    first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
    return InvalidInput(
        f"The guard does not work with Keras {keras.__version__}: {why}. It is known to work with Keras {first} to "
        f"{last}; install one of these, or train with model.fit() and without the guard."
    )


try:
    from keras.src.backend import compute_output_spec
    from keras.src.backend.common.masking import get_keras_mask
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.common.variables import AutocastScope
    from keras.src.utils import module_utils
except ImportError as error:
    raise refusal(str(error)) from error

__all__ = [
    "AutocastScope",
    "compute_output_spec",
    "get_keras_mask",
    "get_stateless_scope",
    "in_stateless_scope",
]


@contextlib.contextmanager
def tensorflow_left_out() -> Iterator[None]:
    """Keep Keras on torch or JAX from loading TensorFlow just to ask whether something is TensorFlow's.

    Seeding and saving ask: 2 s and 250 MB. Nothing can be TensorFlow's in a process that has not loaded it.
    """
    module: Any = getattr(module_utils, "tensorflow", None)
    if "tensorflow" in sys.modules or not hasattr(module, "_available"):
        yield
        return
    before, module._available = module._available, False
    try:
        yield
    finally:
        module._available = before


def check_version(version: str = keras.__version__) -> None:
    """Refuse a Keras of another major version, or one older than all that were tried."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < FIRST:
        raise refusal("it is older")
    if numbers[0] > LAST[0]:
        raise refusal("its inside may have changed")


def missing(model: keras.Model) -> list[str]:
    """Private names that a compiled model of this Keras lacks."""
    found = [name for name in (*MODEL_NAMES, *(COMPILED_NAMES if model.compiled else ())) if not hasattr(model, name)]
    variables = model.variables
    return found + [name for name in VARIABLE_NAMES if variables and not hasattr(variables[0], name)]


def check_names(model: keras.Model) -> None:
    """Refuse a Keras whose models lack a name that a step needs."""
    check_version()
    lacking = missing(model)
    if lacking:
        raise refusal(f"its models have no {', '.join(lacking)}")


def strategy_of(model_or_optimizer: Any) -> Any:
    """The strategy of tf.distribute under which something was made; None without, and on other backends."""
    names = ("_distribute_strategy", "_distribution_strategy")
    found = next((getattr(model_or_optimizer, name) for name in names if hasattr(model_or_optimizer, name)), None)
    return None if found is None or type(found).__name__ == "_DefaultDistributionStrategy" else found


def has_loss(model: keras.Model) -> bool:
    """Whether the model was compiled with a loss."""
    return model._compile_loss is not None


def compiled_loss(model: keras.Model) -> Any:
    """Keras' object over all losses of the model; None without."""
    return model._compile_loss


def loss_terms(compiled: Any) -> list[Any]:
    """The single losses inside, one for each output that has one; none before the model is built."""
    return [] if compiled is None else compiled._flat_losses or []


@contextlib.contextmanager
def terms_replaced(compiled: Any, terms: list[Any]) -> Iterator[None]:
    """Other losses in their place, inside the block."""
    original = compiled._flat_losses
    compiled._flat_losses = terms
    try:
        yield
    finally:
        compiled._flat_losses = original


def given_losses(model: keras.Model) -> list[Any]:
    """The losses as they were given to `compile`."""
    return keras.tree.flatten(model._compile_loss._user_loss) if has_loss(model) else []


def given_metrics(model: keras.Model) -> Any:
    """The metrics as they were given to `compile`; None without."""
    if not model.compiled or model._compile_metrics is None:
        return None
    return model._compile_metrics._user_metrics


def compile_settings(model: keras.Model) -> dict[str, Any]:
    """All that was given to `compile`, as plain values."""
    found = getattr(model, "_compile_config", None)
    return found.config if found is not None else {}


def build(model: keras.Model, batch: tuple[Any, Any, Any]) -> None:
    """Create weights, metrics and optimizer state from the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


def compute_loss(model: keras.Model, **given: Any) -> Any:
    """The model's loss, an override of its author's included."""
    return model._compute_loss(**given)


def track_loss(model: keras.Model, loss: Any, rows: Any) -> None:
    """Count a loss into the mean that the logs show."""
    model._loss_tracker.update_state(loss, sample_weight=rows)


def all_layers(layer: Any, *, include_self: bool = True) -> list[Any]:
    """A layer or model with all layers inside it."""
    return list(layer._flatten_layers(include_self=include_self))


def forget_losses(layer: Any) -> None:
    """Drop the losses that a layer's last call has noted."""
    layer._loss_ids.clear()


def takes_training(model: keras.Model) -> bool:
    """Whether the model's `call` has an argument `training`."""
    return bool(model._call_has_training_arg)


def structures(model: keras.Model) -> tuple[Any, Any]:
    """Inputs and outputs of a functional model, in the form in which it takes and gives them."""
    return model._inputs_struct, model._outputs_struct


def values_of(variables: list[Any]) -> list[Any]:
    """The variables' arrays as they are. The property `value` looks for scopes each time: 32 took 0.1 ms."""
    return [variable._value for variable in variables]


def point(variables: list[Any], values: list[Any]) -> None:
    """Point variables at new arrays. These were computed from the old ones: `assign` would check each of them again."""
    for variable, value in zip(variables, values, strict=True):
        variable._direct_assign(value)


def stepped_variables(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for, in the order of its slots."""
    return optimizer._trainable_variables  # type: ignore[no-any-return]


def with_gradients(optimizer: Any, gradients: list[Any], variables: list[Any]) -> tuple[list[Any], list[Any]]:
    """Gradients and variables without those that have none, as the optimizer itself leaves them out and warns."""
    left, kept = optimizer._filter_empty_gradients(gradients, variables)
    return list(left), list(kept)


def clipped(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """The gradients as the optimizer's settings clip them."""
    return list(optimizer._clip_gradients(gradients))


def swap_value(variable: Any, value: Any) -> Any:
    """Let a variable hold another tensor, of any shape, for a moment; returns the one that it held."""
    before, variable._value = variable._value, value
    return before

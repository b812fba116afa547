"""Keras models on their way to a probe, and as its subject.

Covers: a model as JSON without its weights, made again in the child; the guard's steps on it in any precision.
Does not cover: measuring (guard/forecast/child.py), what XLA says about memory (guard/jax/forecast.py).

Weights stay at home: memory does not depend on their values. The user's own classes and functions travel by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.forecast.build import load_example
from penstock.guard.forecast.peak import held_nbytes
from penstock.guard.forecast.result import Setting
from penstock.guard.forecast.subject import grown, is_classes, labels_of
from penstock.guard.keras import parts as keras_model
from penstock.guard.keras import private
from penstock.guard.keras import remat as keras_remat
from penstock.guard.keras import save as keras_save
from penstock.guard.keras.step import EvalStep, TrainStep, make_backend, variables_nbytes

Built = tuple[keras.Model, Any, Any]

FILL_NBYTES, FILL_TENSORS, FILL_ROUNDS = 1 << 20, 8, 2048
"""Size and number of the tensors that fill a pool at a time, and how often at the most. Tensors of
less than 256 KB would come from another pool."""


def pack_keras(model: keras.Model, folder: Path, *, optimizer: Any, loss: Any) -> dict[str, Any]:
    """Write a model's configuration where the child finds it; returns the child's surroundings."""
    if not model.compiled and loss is None:
        raise InvalidInput("The model is not compiled. Call model.compile(optimizer=..., loss=...), or pass loss=.")
    try:
        config = keras.saving.serialize_keras_object(model)
        given = {"optimizer": _packed(optimizer), "loss": _packed(loss)}
        (folder / "model.json").write_text(json.dumps({"model": config, **given}))
        (folder / "objects.pickle").write_bytes(cloudpickle.dumps(_own_objects(model, loss)))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InvalidInput(
            f"{type(model).__name__} cannot be described by its configuration ({error}). Give it a get_config(), or "
            f"name a function that builds it: forecast('module.py:build', ...)."
        ) from error
    return {"KERAS_BACKEND": keras.backend.backend()}


def packed_keras(folder: Path, spec: Mapping[str, Any]) -> KerasMaker:
    """In the child: the maker of what `pack_keras` wrote."""
    objects = cloudpickle.loads((folder / "objects.pickle").read_bytes())
    text = json.loads((folder / "model.json").read_text())

    def build() -> Built:
        def made(config: Any) -> Any:
            return keras.saving.deserialize_keras_object(config, custom_objects=objects, safe_mode=False)

        return made(text["model"]), made(text["loss"]), made(text["optimizer"])

    return KerasMaker(build, load_example(folder))


class KerasMaker:
    """Makes the model afresh for each setting."""

    def __init__(self, build: Callable[[], Built], example: Any) -> None:
        self._build, self._example = build, example

    def make(self, setting: Setting) -> KerasSubject | None:
        """The compiled model in a setting; None if it has no layer that could be rematerialised."""
        keras.backend.clear_session()
        model, loss, optimizer = self._build()
        example = example_of(model) if self._example is None else self._example
        if not model.compiled or loss is not None or optimizer is not None:
            _compile(model, loss, optimizer, example)
        keras_model.check(model)
        if setting.precision:
            keras_model.set_precision(model, setting.precision)
        keras_model.build(model, grown(keras_model.unpack(example), 2))
        if setting.remat and not keras_remat.rematerialise(model):
            return None
        return KerasSubject(model, example)


class KerasSubject:
    """A compiled Keras model with the guard's steps."""

    def __init__(self, model: keras.Model, example: Any) -> None:
        self.who, self.framework = model.name, f"keras-{keras.backend.backend()}"
        self.precision = model.dtype_policy.name
        self.keeps = keras.backend.backend() == "tensorflow" and not model.jit_compile
        self._example = keras_model.unpack(example)
        self.backend = make_backend(model)
        self.at_once = self.backend.whole_step is not None
        self.train, self.evaluate = TrainStep(self.backend), EvalStep(self.backend)

    def state(self) -> dict[str, int]:
        """Bytes by kind. Keras makes optimizer state when it builds, so all of it is there."""
        model = self.backend.program.model
        trainable, optimizer = variables_nbytes(model.trainable_variables), variables_nbytes(model.optimizer.variables)
        # TensorFlow and JAX hold old values only while the optimizer steps; torch keeps a buffer for some of them.
        copies = self.backend.nbytes
        parameters = variables_nbytes(model.variables)
        return {
            "parameters": parameters,
            "gradients": trainable,
            "optimizer": optimizer,
            "copies": copies,
            "held": parameters + optimizer + copies,
        }

    def batch(self, rows: int) -> Any:
        """A batch as x, y and sample weights."""
        return grown(self._example, rows)

    def fill(self) -> object:
        """TensorFlow's pools are full when new tensors make the process grow."""
        filling: list[Any] = []
        for _ in range(FILL_ROUNDS if self.keeps else 0):
            before = held_nbytes()
            filling += [keras.ops.ones(FILL_NBYTES // 4) + 1 for _ in range(FILL_TENSORS)]
            if held_nbytes() - before > (FILL_TENSORS - 1) * FILL_NBYTES:
                break
        return filling

    def save(self, path: Path) -> None:
        """Write a checkpoint as the guard's loop does."""
        keras_save.save(path, self.backend.program, {})

    def compiled(self, rows: int) -> float | None:
        """What XLA plans for a part, on JAX; TensorFlow and torch say nothing for Keras models."""
        if keras.backend.backend() != "jax":
            return None
        from penstock.guard.jax.forecast import planned_nbytes

        return planned_nbytes(self.backend, self.batch(1), rows)


def example_of(model: keras.Model) -> Any:
    """Rows of zeros in the shapes that a model with known inputs takes and gives."""
    if not getattr(model, "inputs", None):
        raise InvalidInput(f"{type(model).__name__} does not say what it takes. Give data, a batch, or --shape.")
    # A Sequential has one input and one output and, unlike a functional model, no structures of them.
    one = isinstance(model, keras.Sequential)
    inputs, outputs = (model.inputs[0], model.outputs[0]) if one else private.structures(model)
    x = keras.tree.map_structure(lambda tensor: np.zeros(_shape(tensor), tensor.dtype), inputs)
    sparse = model.compiled and "sparse" in str(getattr(model.loss, "name", model.loss)).lower()

    def label(tensor: Any) -> np.ndarray:
        return np.zeros(_shape(tensor)[:-1], np.int64) if sparse else np.zeros(_shape(tensor), np.float32)

    y = keras.tree.map_structure(label, outputs)
    return (tuple(x) if isinstance(x, list) else x), (tuple(y) if isinstance(y, list) else y)


def _shape(tensor: Any) -> tuple[int, ...]:
    if None in tensor.shape[1:]:
        raise InvalidInput(
            f"The model's {tensor.name!r} has an open shape {tensor.shape}. Give data, a batch, or --shape."
        )
    return (2, *tensor.shape[1:])


def _compile(model: keras.Model, loss: Any, optimizer: Any, example: Any) -> None:
    if loss is None and model.compiled:
        loss = model.loss
    if loss is None:
        one_class = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loss = one_class if is_classes(labels_of(example)) else "mse"
    metrics = private.given_metrics(model)
    optimizer = optimizer or (model.optimizer if model.compiled else "adamw")
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)


def _packed(given: Any) -> Any:
    return given if given is None or isinstance(given, str) else keras.saving.serialize_keras_object(given)


def _own_objects(model: keras.Model, loss: Any) -> dict[str, Any]:
    """Classes and functions that Keras cannot find by itself in another process, by name."""
    found = dict(keras.saving.get_custom_objects())
    values = keras.tree.flatten([private.compile_settings(model), loss])
    things = [*map(type, private.all_layers(model)), type(model), *values, *map(type, values)]
    for thing in things:
        module = getattr(thing, "__module__", None) or ""
        if callable(thing) and hasattr(thing, "__name__") and module.partition(".")[0] not in ("keras", "builtins"):
            found.setdefault(thing.__name__, thing)
    return found

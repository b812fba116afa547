"""The models that come with the command, and those that users bring.

Covers: small Keras models for pictures, tables and text, `module.py:build`, .keras files, compiling.
Does not cover: training (guard/), what the inputs mean (train/recipe.py).

The model that comes along has a branch for each input and joins them. `--model` names the branch that must be there.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from keras import layers

from penstock.core.errors import BadData, InvalidInput
from penstock.train.recipe import InputSpec, Target
from penstock.train.user_code import call_user

_NEEDS = {"cnn": "image", "text": "text"}


def make_model(name: str, inputs: Mapping[str, InputSpec], target: Target, learning_rate: float) -> keras.Model:
    """The model that `--model` names, compiled; one that comes compiled keeps its own optimizer and loss."""
    if name.endswith(".keras"):
        model = open_model(Path(name))
    elif ":" in name:
        model = _from_module(name, inputs, target)
    else:
        _check(name, inputs)
        model = small_model(name, inputs, target.outputs)
    if not model.compiled:
        compile_model(model, target, learning_rate)
    return model


def small_model(name: str, inputs: Mapping[str, InputSpec], outputs: int) -> keras.Model:
    """A model small enough for a processor: one branch for each input, then two dense layers."""
    entries = {key: keras.Input(spec.shape, dtype=spec.dtype, name=key) for key, spec in inputs.items()}
    branches = [_BRANCHES[key](entries[key], spec, name) for key, spec in inputs.items()]
    joined = branches[0] if len(branches) == 1 else layers.Concatenate()(branches)
    hidden = layers.Dense(64, activation="relu")(joined)
    end = layers.Dense(outputs, name="output", dtype="float32")(hidden)
    given = next(iter(entries.values())) if len(entries) == 1 else entries
    return keras.Model(given, end, name=name if name != "auto" else _own_name(inputs))


def compile_model(model: keras.Model, target: Target, learning_rate: float) -> None:
    """Adam; cross-entropy over logits with accuracy for classes, squared error for numbers."""
    optimizer = keras.optimizers.Adam(learning_rate)
    if target.task == "number":
        model.compile(optimizer, "mse", metrics=["mae"])
        return
    logits = not _ends_in_softmax(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
    model.compile(optimizer, loss, metrics=["accuracy"])


def _own_name(inputs: Mapping[str, InputSpec]) -> str:
    return "cnn" if "image" in inputs else "text" if "text" in inputs else "mlp"


def _check(name: str, inputs: Mapping[str, InputSpec]) -> None:
    needed = _NEEDS.get(name)
    if needed is not None and needed not in inputs:
        what = {"image": "pictures", "text": "a column of text"}[needed]
        raise InvalidInput(f"--model {name} needs {what}; the data has {', '.join(inputs)}. Leave --model out.")


def _image_branch(x: Any, spec: InputSpec, name: str) -> Any:
    if spec.dtype == "uint8":
        x = layers.Rescaling(1 / 255)(x)
    if name == "mlp":
        return layers.Dense(128, activation="relu")(layers.Flatten()(x))
    side = min(spec.shape[:2])
    # Large pictures are made small at once: at full size the first layer would hold nearly all of the memory.
    x = layers.Conv2D(16, 5 if side > 56 else 3, strides=4 if side > 112 else 2 if side > 56 else 1, padding="same",
                      activation="relu")(x)  # fmt: skip
    for filters in (32, 64):
        x = layers.MaxPooling2D()(x) if min(x.shape[1:3]) > 3 else x
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x) if min(x.shape[1:3]) > 3 else x
    return layers.GlobalAveragePooling2D()(x) if max(x.shape[1:3]) > 8 else layers.Flatten()(x)


def _text_branch(x: Any, spec: InputSpec, name: str) -> Any:
    x = layers.Embedding(spec.sizes[0], 32)(x)
    x = layers.Conv1D(64, 3, padding="same", activation="relu")(x)
    return layers.GlobalMaxPooling1D()(x)


def _numbers_branch(x: Any, spec: InputSpec, name: str) -> Any:
    return layers.Dense(64, activation="relu")(x)


def _categories_branch(x: Any, spec: InputSpec, name: str) -> Any:
    found = []
    for place, size in enumerate(spec.sizes):
        code = x[:, place]
        found.append(layers.Embedding(size, min(16, 2 + size // 4))(code))
    return found[0] if len(found) == 1 else layers.Concatenate()(found)


_BRANCHES = {
    "image": _image_branch,
    "text": _text_branch,
    "numbers": _numbers_branch,
    "categories": _categories_branch,
}


def open_model(path: Path) -> keras.Model:
    """The model in a .keras file, or an error that says what is wrong with it."""
    if not zipfile.is_zipfile(path):  # Keras says "File not found" of such a file
        raise BadData(str(path), "not a Keras model, or one that was cut short: a .keras file is a zip archive")
    try:
        return keras.models.load_model(path)
    except Exception as error:
        first = str(error).strip().splitlines()
        raise BadData(str(path), f"Keras cannot open it: {first[0] if first else type(error).__name__}") from error


def _from_module(name: str, inputs: Mapping[str, InputSpec], target: Target) -> keras.Model:
    """Call the user's function with what it asks for, by name."""
    shapes = {key: spec.shape for key, spec in inputs.items()}
    offered = {
        "input_shape": next(iter(shapes.values())) if len(shapes) == 1 else shapes,
        "inputs": dict(inputs),
        "outputs": target.outputs,
        "classes": target.outputs,
    }
    model = call_user(name, offered)
    if not isinstance(model, keras.Model):
        raise InvalidInput(f"{name} must return a keras.Model, not a {type(model).__name__}.")
    return model


def _ends_in_softmax(model: keras.Model) -> bool:
    last = model.layers[-1] if model.layers else None
    activation = getattr(last, "activation", None)
    return isinstance(last, layers.Softmax) or getattr(activation, "__name__", "") == "softmax"

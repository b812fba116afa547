"""Model files: opening what users bring, writing what their framework opens again.

Covers: .keras and .h5, SavedModel folders, .pt2 programs, TorchScript, and `module.py:build` with weights.
Does not cover: conversion to LiteRT and ONNX (export.py).
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.compress.data import Inputs, arrays
from penstock.compress.framework import framework_of
from penstock.core.errors import BadData, InvalidInput, NotFound, PenstockError
from penstock.core.user.code import function_of, load_module

KERAS_FILES = (".keras", ".h5")


@dataclass(frozen=True)
class SavedModel:
    """A TensorFlow SavedModel: a program without layers, which can only become a LiteRT file."""

    path: Path


def open_model(path: str | Path, *, weights: str | Path | None = None) -> Any:
    """The model in a file, or the one that `module.py:function` builds, with its weights."""
    text = str(path)
    name, colon, function = text.rpartition(":")
    if colon and name.endswith(".py"):
        return _built(Path(name), function, weights)
    place = Path(path)
    if not place.exists():
        raise NotFound(f"There is no model at {place}.")
    if place.is_dir():
        if (place / "saved_model.pb").exists():
            return SavedModel(place)
        raise InvalidInput(f"{place} is a folder without saved_model.pb, so it is not a SavedModel.")
    opener = {".keras": _open_keras, ".h5": _open_keras, ".pt2": _open_pt2, ".pt": _open_script}.get(place.suffix)
    if opener is None:
        raise InvalidInput(
            f"{place.name} is not a model file that can be opened: give .keras, .h5, .pt2, .pt (TorchScript), "
            "a SavedModel folder, or module.py:build for a torch module."
        )
    return opener(place)


def _open_keras(path: Path) -> Any:
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):  # Keras says "File not found" of such a file
        raise BadData(str(path), "not a Keras model, or one that was cut short: a .keras file is a zip archive")
    import keras

    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:
        raise BadData(str(path), f"Keras cannot open it: {_short(error)}") from error


def _open_pt2(path: Path) -> Any:
    import torch

    try:
        return torch.export.load(path).module()
    except Exception as error:
        raise BadData(str(path), f"torch.export.load failed: {_short(error)}") from error


def _open_script(path: Path) -> Any:
    import torch

    try:
        return torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except Exception as error:
        raise BadData(
            str(path),
            f"not TorchScript: {_short(error)}. A file of weights needs the code that builds the module: x.py:build",
        ) from error


def _built(module_path: Path, function: str, weights: str | Path | None) -> Any:
    model = call_function(module_path, function)
    if weights is None:
        return model
    if framework_of(model).name == "keras":
        try:
            model.load_weights(weights)
        except Exception as error:
            raise BadData(str(weights), f"not weights of {function}(): {_short(error)}") from error
        return model
    import torch

    if not Path(weights).exists():
        raise NotFound(f"There are no weights at {weights}.")
    try:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except Exception as error:
        raise BadData(str(weights), f"not weights of {function}(): {_short(error)}") from error
    return model


def call_function(path: Path, name: str) -> Any:
    """What a function of a Python file makes. The file's classes travel by value to child processes."""
    import cloudpickle

    module = load_module(path)
    cloudpickle.register_pickle_by_value(module)
    function = function_of(module, name)
    try:
        return function()
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidInput(f"{name}() of {path} failed: {_short(error)}") from error


def save_model(model: Any, path: str | Path, example: Inputs | None = None) -> Path:
    """Write a model so that its own framework opens it without penstock: .keras, .pt2, or .pt (TorchScript)."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if framework_of(model).name == "keras":
        if place.suffix not in KERAS_FILES:
            raise InvalidInput(f"A Keras model is written to .keras, .tflite or .onnx, not {place.name!r}.")
        model.save(place)
        return place
    if example is None:
        raise InvalidInput("Writing a torch module needs data (or example=): one batch of inputs to trace it with.")
    if place.suffix == ".pt2":
        _save_pt2(model, place, example)
    elif place.suffix == ".pt":
        _save_script(model, place, example)
    else:
        raise InvalidInput(f"A torch module is written to .pt2, .pt (TorchScript) or .onnx, not {place.name!r}.")
    return place


def _call(example: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one call, positional or by name."""
    import torch

    # Two rows at least: torch.export takes an axis of one for a constant.
    parts = {
        name: torch.from_numpy(np.concatenate([part[:2]] * 2)[:2].copy()) for name, part in arrays(example).items()
    }
    return ((), parts) if isinstance(example, dict) else (tuple(parts.values()), {})


def export_program(model: Any, example: Inputs) -> Any:
    """The module as a torch program for any number of rows."""
    import torch

    from penstock.compress.torch.framework import set_mode

    set_mode(model, False)
    positional, named = _call(example)
    any_rows = {0: torch.export.Dim("rows")}
    shapes: Any = dict.fromkeys(named, any_rows) if named else tuple(any_rows for _ in positional)
    try:
        return torch.export.export(model, positional, named, dynamic_shapes=shapes)
    except Exception as error:
        raise InvalidInput(
            f"torch.export cannot write {type(model).__name__}: {_short(error)} int8-static and int8-dynamic modules "
            "go to a .pt (TorchScript) file."
        ) from error


def _save_pt2(model: Any, path: Path, example: Inputs) -> None:
    import torch

    program = export_program(model, example)
    # Notes on where each operation was written outweigh a small model, and carry the paths of this machine. So do
    # checks that a tensor has the dtype it was stored in, for which every packed weight is unpacked a second time.
    for node in list(program.graph.nodes):
        for note in ("stack_trace", "from_node", "torch_fn", "nn_module_stack"):
            node.meta.pop(note, None)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    torch.export.save(program, path)


def _save_script(model: Any, path: Path, example: Inputs) -> None:
    import torch

    from penstock.compress.torch.framework import set_mode

    set_mode(model, False)
    positional, named = _call(example)
    given: dict[str, Any] = {"example_kwarg_inputs": named} if named else {"example_inputs": positional}
    with torch.inference_mode(False), torch.no_grad():
        made: Any = torch.jit.trace(model, **given)  # type: ignore[no-untyped-call]
        torch.jit.save(made, str(path))


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'...' if len(text) > 300 else ''}"

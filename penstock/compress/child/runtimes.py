"""Running a model file in its own runtime.

Covers: LiteRT, ONNX, SavedModel, Keras and torch files behind one function of a batch, with outputs by name.
Does not cover: measuring it (measure.py), writing files (files.py, export.py).

Runtimes reorder what they take and give (LiteRT lists outputs as its graph happens to end), so inputs and outputs are
matched by name wherever a file has names, and by order only where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.compress.data import Array, Inputs, Outputs, arrays, bare
from penstock.compress.files import open_model
from penstock.compress.framework import framework_of
from penstock.core.errors import InvalidInput

Predict = Callable[[Inputs], Outputs]


def runner(path: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Predict:
    """A function that runs a model file. `inputs` and `outputs` are the model's own names, in its order."""
    if path.suffix == ".tflite":
        return _lite(path, inputs, outputs)
    if path.suffix == ".onnx":
        return _onnx(path, inputs, outputs)
    if path.is_dir():
        return _saved_model(path, inputs, outputs)
    model = open_pickle(path) if path.suffix == ".pkl" else open_model(path)
    framework = framework_of(model)
    return lambda x: _renamed(arrays(framework.predict(model, x)), outputs)


def open_pickle(path: Path) -> Any:
    """A module that the parent handed over by value."""
    import cloudpickle

    return cloudpickle.loads(path.read_bytes())


def _given(x: Inputs, file_names: Sequence[str], order: Sequence[str]) -> dict[str, Array]:
    """A batch's arrays under the names that a file gives its inputs."""
    parts = arrays(x)
    if set(parts) == set(file_names):
        return parts
    names = order if set(order) == set(file_names) else file_names
    if len(names) != len(parts):
        raise InvalidInput(f"The file takes {len(names)} inputs ({', '.join(names)}); a batch holds {len(parts)}.")
    return dict(zip(names, parts.values(), strict=True))


def _renamed(made: Mapping[str, Array], names: Sequence[str]) -> Outputs:
    """Outputs under the model's names, in its order."""
    if len(made) == 1:
        return next(iter(made.values()))
    if set(names) == set(made):
        return {name: made[name] for name in names}
    if len(names) == len(made):
        return dict(zip(names, made.values(), strict=True))
    return bare(dict(made))


def _numbered(name: str) -> tuple[int, str]:
    """Sorts output_2 before output_10."""
    digits = name.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else 0, name)


def _lite(path: Path, order: Sequence[str], names: Sequence[str]) -> Predict:
    import tensorflow as tf

    runtime = tf.lite.Interpreter(model_path=str(path))
    if runtime.get_signature_list():
        signature = runtime.get_signature_runner()
        takes, gives = signature.get_input_details(), signature.get_output_details()
    else:
        takes = {detail["name"]: detail for detail in runtime.get_input_details()}
        gives = {detail["name"]: detail for detail in runtime.get_output_details()}
    shapes: dict[str, tuple[int, ...]] = {}

    def predict(x: Inputs) -> Outputs:
        given = _given(x, sorted(takes, key=_numbered), order)
        parts = {n: part.astype(takes[n]["dtype"], copy=False) for n, part in given.items()}
        if shapes != {name: part.shape for name, part in parts.items()}:
            for name, part in parts.items():
                runtime.resize_tensor_input(takes[name]["index"], part.shape)
                shapes[name] = part.shape
            runtime.allocate_tensors()
        for name, part in parts.items():
            runtime.set_tensor(takes[name]["index"], part)
        runtime.invoke()
        made = {name: np.asarray(runtime.get_tensor(gives[name]["index"])) for name in sorted(gives, key=_numbered)}
        return _renamed(made, names)

    return predict


def _onnx(path: Path, order: Sequence[str], names: Sequence[str]) -> Predict:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    takes = [given.name for given in session.get_inputs()]
    gives = [made.name for made in session.get_outputs()]

    def predict(x: Inputs) -> Outputs:
        made = session.run(None, _given(x, takes, order))
        return _renamed({name: np.asarray(part) for name, part in zip(gives, made, strict=True)}, names)

    return predict


def _saved_model(path: Path, order: Sequence[str], names: Sequence[str]) -> Predict:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    if "serving_default" not in loaded.signatures:
        raise InvalidInput(f"{path} has no signature 'serving_default'; it has {sorted(loaded.signatures) or 'none'}.")
    serve = loaded.signatures["serving_default"]
    takes = sorted(serve.structured_input_signature[1], key=_numbered)  # the order in which LiteRT files are read too

    def predict(x: Inputs) -> Outputs:
        made = serve(**{name: tf.constant(part) for name, part in _given(x, takes, order).items()})
        return _renamed({name: np.asarray(made[name]) for name in sorted(made, key=_numbered)}, names)

    predict.loaded = loaded  # type: ignore[attr-defined]  # the signature alone does not keep its variables alive
    return predict

"""The child process that converts a Keras model: `python -m penstock.compress.child.convert SPEC.json`.

Covers: LiteRT files (float32, float16, dynamic and full int8) and ONNX files.
Does not cover: choosing what to convert (export.py).

A child, because LiteRT needs TensorFlow and ONNX the torch backend whatever backend the parent runs on, and because
the converter's memory then goes back to the system.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.compress.child.spill import Spilled
from penstock.compress.data import arrays, count, rows


def _representative(folder: str, takes: Mapping[str, Any]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Rows under the names and in the dtypes that the signature has."""
    # One row at a time: the calibrator keeps ranges, never rows, so memory does not grow with the data.
    for x, _ in Spilled(folder):
        order = list(x) if isinstance(x, dict) and set(x) == set(takes) else list(takes)
        for i in range(count(x)):
            parts = arrays(rows(x, i, i + 1)).values()
            yield {name: part.astype(takes[name], copy=False) for name, part in zip(order, parts, strict=True)}


def to_lite(spec: dict[str, Any]) -> bytes:
    """The bytes of a LiteRT model."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory(prefix="penstock-convert-") as folder:
        source, takes = _saved(Path(spec["model"]), folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(source)
        if spec["mode"] is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if spec["mode"] == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if spec["mode"] == "int8-static":
            converter.representative_dataset = lambda: _representative(spec["calibration"], takes)
            # Inputs and outputs stay float32, so that the file replaces the model without changes around it.
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        return bytes(converter.convert())


def _saved(path: Path, folder: str) -> tuple[str, dict[str, Any]]:
    """A SavedModel folder, and the dtypes of its inputs by name. Keras models go through one, because the converter's
    own entrance for Keras models takes only those with one input."""
    import tensorflow as tf

    if path.is_dir():
        serve = tf.saved_model.load(str(path)).signatures["serving_default"]
        return str(path), {n: spec.dtype.as_numpy_dtype for n, spec in serve.structured_input_signature[1].items()}
    import keras

    model = keras.models.load_model(path, compile=False)
    model.export(folder, format="tf_saved_model", verbose=False)
    return folder, {tensor.name: tensor.dtype for tensor in model.inputs}


def to_onnx(spec: dict[str, Any]) -> None:
    """Write an ONNX file through the torch backend."""
    import keras

    model = keras.models.load_model(spec["model"], compile=False)
    # Keras exports only models that have been called; a freshly loaded one has not.
    blank = [np.zeros([n or 1 for n in tensor.shape], dtype=tensor.dtype) for tensor in model.inputs]
    names = [tensor.name for tensor in model.inputs]
    by_name = isinstance(getattr(model, "_inputs_struct", None), dict)
    model(dict(zip(names, blank, strict=True)) if by_name else blank if len(blank) > 1 else blank[0])
    model.export(spec["out"], format="onnx", verbose=False)


def main(path: str) -> None:
    """Convert as the spec says."""
    spec = json.loads(Path(path).read_text())
    if spec["out"].endswith(".onnx"):
        to_onnx(spec)
    else:
        Path(spec["out"]).write_bytes(to_lite(spec))


if __name__ == "__main__":
    main(sys.argv[1])

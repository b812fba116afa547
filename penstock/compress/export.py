"""Files for devices: LiteRT (.tflite) and ONNX.

Covers: quantized LiteRT with calibration that is streamed through disk, ONNX from Keras and torch.
Does not cover: the conversion itself (convert.py), files of the frameworks (files.py).
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from penstock.compress.child.process import ChildFailed, run_child
from penstock.compress.child.spill import Spilled
from penstock.compress.data import CALIBRATION_ROWS, Batches, Inputs
from penstock.compress.files import SavedModel, export_program
from penstock.compress.framework import framework_of
from penstock.core.errors import InvalidInput, MissingExtra

LITE_MODES = (None, "float16", "int8", "int8-dynamic", "int8-static")


def export_lite(
    model: object,
    path: str | Path,
    mode: str | None = None,
    *,
    calibration: Batches | None = None,
    calibration_rows: int = CALIBRATION_ROWS,
    timeout_s: float = 600.0,
) -> Path:
    """Write a Keras model or SavedModel as a LiteRT file.

    int8 means full int8 (weights and activations) where `calibration` is given, else int8 weights only.
    """
    if mode not in LITE_MODES:
        raise InvalidInput(f"LiteRT has no {mode!r}; it has float16, int8, int8-dynamic and int8-static.")
    if mode == "int8":
        mode = "int8-static" if calibration is not None else "int8-dynamic"
    if mode == "int8-static" and calibration is None:
        raise InvalidInput("int8-static measures activations first: pass calibration (or data).")
    if not isinstance(model, SavedModel) and framework_of(model).name != "keras":
        raise InvalidInput("LiteRT files are made from Keras models and SavedModels. Export a torch module to .onnx.")
    with tempfile.TemporaryDirectory(prefix="penstock-export-") as folder:
        spec = {"model": _source(model, folder), "out": str(path), "mode": mode, "calibration": f"{folder}/rows"}
        if mode == "int8-static" and calibration is not None:
            Spilled.write(calibration, spec["calibration"] or "", max_rows=calibration_rows, what="calibration")
        _convert(spec, "tensorflow", timeout_s)
    return Path(path)


def export_onnx(model: object, path: str | Path, example: Inputs | None = None, *, timeout_s: float = 600.0) -> Path:
    """Write a Keras model or torch module as an ONNX file."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(what="Writing ONNX files", extra="onnx")
    if isinstance(model, SavedModel):
        raise InvalidInput(
            "A SavedModel becomes a .tflite file; ONNX files are made from .keras files and torch modules."
        )
    if framework_of(model).name == "keras":
        with tempfile.TemporaryDirectory(prefix="penstock-export-") as folder:
            _convert({"model": _source(model, folder), "out": str(path)}, "torch", timeout_s)
        return Path(path)
    import torch

    if example is None:
        raise InvalidInput("Writing ONNX from torch needs data (or example=): one batch of inputs to trace it with.")
    torch.onnx.export(export_program(model, example), (), str(path), dynamo=True, verbose=False, external_data=False)
    return Path(path)


def _source(model: Any, folder: str) -> str:
    if isinstance(model, SavedModel):
        return str(model.path)
    from penstock.guard.keras.private import all_layers

    if any(getattr(layer, "quantization_mode", None) for layer in all_layers(model)):
        raise InvalidInput(
            "A model that Keras quantized cannot be converted. Convert the float model, and name the mode."
        )
    model.save(f"{folder}/model.keras")
    return f"{folder}/model.keras"


def _convert(spec: dict[str, Any], backend: str, timeout_s: float) -> None:
    out = Path(spec["out"])
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        run_child("penstock.compress.child.convert", spec, env={"KERAS_BACKEND": backend}, timeout_s=timeout_s)
    except ChildFailed as error:
        raise InvalidInput(f"The model cannot be converted to {out.suffix}: {error}") from error

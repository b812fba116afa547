"""Measuring a model from outside.

Covers: the facts about one model file, taken by child processes on one thread.
Does not cover: how the child measures (measure.py).
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.compress.child.process import run_child
from penstock.compress.child.spill import Spilled
from penstock.compress.data import Inputs, arrays, first, rows
from penstock.compress.files import SavedModel
from penstock.compress.framework import framework_of
from penstock.compress.result.score import Score

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ModelFacts:
    """What was measured of one model. None means that it was not measured, never that it is zero."""

    file: str
    file_nbytes: int
    parameters: int | None = None
    inference_nbytes: int | None = None
    process_nbytes: int | None = None
    training_nbytes: int | None = None
    latency_ms: float | None = None
    cpu_ms: float | None = None
    batch_rows: int | None = None
    score: Score | None = None


def file_nbytes(path: str | Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    place = Path(path)
    return sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) if place.is_dir() else place.stat().st_size


def measure(
    path: str | Path,
    held_out: Spilled | None,
    *,
    model: Any = None,
    training: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> ModelFacts:
    """Measure a model file in child processes. `model`, the one in memory, gives parameters and can be trained."""
    place = Path(path)
    known = model is not None and not isinstance(model, SavedModel)
    facts: dict[str, Any] = {"file": place.name, "file_nbytes": file_nbytes(place)}
    if known:
        facts["parameters"] = framework_of(model).parameters(model)
    if held_out is not None:
        spec: dict[str, Any] = {"model": str(place), "held_out": str(held_out.folder), "what": "inference"}
        spec |= _names(model, first(held_out)[0]) if known else {"inputs": [], "outputs": []}
        seen = run_child("penstock.compress.child.measure", spec, env=_surroundings(), timeout_s=timeout_s)
        facts |= {
            "inference_nbytes": seen["peak_nbytes"], "process_nbytes": seen["process_nbytes"],
            "latency_ms": seen["latency_ms"], "cpu_ms": seen["cpu_ms"], "batch_rows": seen["rows"],
            "score": _score(seen["score"]),
        }  # fmt: skip
        if training and known:
            facts["training_nbytes"] = _training_peak(model, held_out, place)
    return ModelFacts(**facts)


def _names(model: Any, x: Inputs) -> dict[str, Any]:
    """What the model calls its inputs and outputs, in its own order, by which a file's are identified."""
    framework = framework_of(model)
    outputs = [name for name in arrays(framework.predict(model, rows(x, 0, 2))) if name]
    inputs = [tensor.name for tensor in getattr(model, "inputs", [])] if framework.name == "keras" else []
    return {"inputs": inputs, "outputs": outputs}


def _score(seen: dict[str, Any]) -> Score:
    return Score(**{**seen, "parts": {name: _score(part) for name, part in seen["parts"].items()}})


def _training_peak(model: Any, held_out: Spilled, file: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-measure-") as folder:
        if framework_of(model).name == "keras":
            path = Path(folder, "model.keras")
            model.save(path)
        else:
            import cloudpickle

            path = Path(folder, "model.pkl")
            try:
                path.write_bytes(cloudpickle.dumps(model))
            except (TypeError, AttributeError, RuntimeError, pickle.PicklingError):
                # A program that torch.export made, a module that holds a lock or a hook: its file trains as well.
                path = file
        spec = {"model": str(path), "held_out": str(held_out.folder), "what": "training"}
        return int(
            run_child("penstock.compress.child.measure", spec, env=_surroundings(), timeout_s=TIMEOUT_S)["peak_nbytes"]
        )


def _surroundings() -> dict[str, str]:
    # One thread: on a busy machine, latencies of several threads measure the other processes.
    single = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    single["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    keras = sys.modules.get("keras")
    return single | ({"KERAS_BACKEND": keras.backend.backend()} if keras is not None else {})

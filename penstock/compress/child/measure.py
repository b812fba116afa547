"""The child process that measures a model file: `python -m penstock.compress.child.measure SPEC.json`.

Covers: peak memory of inference or training, latency, and the held-out score of the file as it lies on disk.
Does not cover: starting the child (probe.py), reporting (report.py).

The peak is the process's high-water mark above what it held once the framework was loaded and had run a tiny model:
start-up costs (thread pools, code caches) are then not charged to the model.
"""

from __future__ import annotations

import importlib
import io
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from penstock.compress.child.runtimes import open_pickle, runner
from penstock.compress.child.spill import Spilled
from penstock.compress.data import Array, by_output, count, first, labels
from penstock.compress.files import KERAS_FILES, open_model
from penstock.compress.framework import Loss, framework_of
from penstock.compress.result.score import score
from penstock.compress.train import goals_of

WARM_RUNS, MOST_RUNS, TIMED_S = 3, 50, 3.0


def status_nbytes(field: str) -> int:
    """A memory line of this process, such as VmRSS or VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def reset_peak() -> None:
    """Make VmHWM start again from now."""
    Path("/proc/self/clear_refs").write_text("5")


def warm(path: Path, training: bool) -> None:
    """Load the framework of a file and run a tiny model, so that its start-up is behind us."""
    if path.suffix in KERAS_FILES:
        import keras

        layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
        tiny: Any = keras.Sequential(layers)
        x: Array = np.zeros((2, 8, 8, 1), dtype=np.float32)
    elif path.suffix in (".pt2", ".pt", ".pkl"):
        import torch

        tiny = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2))
        x = np.zeros((2, 1, 8, 8), dtype=np.float32)
    else:
        if path.suffix == ".onnx":
            importlib.import_module("onnxruntime")
        elif path.suffix == ".tflite" or path.is_dir():
            importlib.import_module("tensorflow")
        return
    if path.suffix == ".pt2":
        program = io.BytesIO()
        torch.export.save(torch.export.export(tiny, (torch.from_numpy(x),)), program)
        program.seek(0)
        torch.export.load(program)
    framework = framework_of(tiny)
    framework.predict(tiny, x)
    if training:
        framework.trainer(tiny, {"": Loss("classify")}, 1e-3).step(x, np.zeros(2, dtype=np.int64), None)


def measure_inference(path: Path, held_out: Spilled, spec: dict[str, Any]) -> dict[str, Any]:
    """Peak memory, latency and CPU time on the first batch, then the score on all."""
    x, _ = first(held_out, "held_out")
    base = status_nbytes("VmRSS")
    reset_peak()
    predict = runner(path, spec["inputs"], spec["outputs"])
    for _ in range(WARM_RUNS):
        predict(x)
    times: list[float] = []
    used, end = time.process_time(), time.perf_counter() + TIMED_S
    while len(times) < MOST_RUNS and (len(times) < 5 or time.perf_counter() < end):
        start = time.perf_counter()
        predict(x)
        times.append(time.perf_counter() - start)
    used = time.process_time() - used
    peak = status_nbytes("VmHWM")
    return {
        "peak_nbytes": max(0, peak - base), "process_nbytes": peak, "latency_ms": statistics.median(times) * 1e3,
        "cpu_ms": used / len(times) * 1e3, "rows": count(x), "runs": len(times),
        "score": asdict(score(predict, held_out)),
    }  # fmt: skip


def measure_training(path: Path, held_out: Spilled) -> dict[str, Any]:
    """Peak memory of three optimizer steps on the first batch."""
    x, y = first(held_out, "held_out")
    base = status_nbytes("VmRSS")
    reset_peak()
    model = open_pickle(path) if path.suffix == ".pkl" else open_model(path)
    framework = framework_of(model)
    goals = goals_of(framework, model, x, y)
    trainer = framework.trainer(model, goals, 1e-3)
    targets = {name: labels(part, goals[name].task) for name, part in by_output(y, goals).items()}
    for _ in range(3):
        trainer.step(x, targets, None)
    return {"peak_nbytes": max(0, status_nbytes("VmHWM") - base)}


def main(spec_path: str) -> None:
    """Measure as the spec says and leave the answer where it says."""
    spec = json.loads(Path(spec_path).read_text())
    path, held_out, training = Path(spec["model"]), Spilled(spec["held_out"]), spec["what"] == "training"
    warm(path, training)
    answer = measure_training(path, held_out) if training else measure_inference(path, held_out, spec)
    Path(spec["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])

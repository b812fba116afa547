"""The job of recording_cost.py: a Keras model learns for some seconds, recorded or not.

Covers: python -m benchmarks.recording_cost_job RUN_FOLDER|- SECONDS -> one line of JSON.
Does not cover: rounds and verdicts (recording_cost.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import penstock as ps
from penstock.watch.record import Recorder

ROWS, BATCH = 200_000, 256


class Until(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after some seconds, counted from the first step's end, so that building is left out."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.steps = seconds, 0
        self.began: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = (time.monotonic(), time.process_time())
        if self.began is None:
            self.began = now
            spent.clear()
            return
        self.steps += 1
        self.ended = now
        if now[0] - self.began[0] > self.seconds:
            self.model.stop_training = True


spent: list[float] = []


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note the processor time that a method takes in its thread."""

    def wrapped(*words: Any, **named: Any) -> Any:
        start_s = time.thread_time()
        try:
            return function(*words, **named)
        finally:
            spent.append(time.thread_time() - start_s)

    return wrapped


def main(folder: str, seconds: float) -> None:
    """Train, and tell the processor time of a step and the share that went into the record."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 40), np.float32)
    y = (x[:, :5].sum(axis=1) > 0).astype(np.int32)
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((40,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    ds = ps.from_tensor_slices((x, y)).shuffle(seed=1).batch(BATCH)
    until = Until(seconds)
    recorded = folder != "-"
    if recorded:
        # What _hear and _sample_once do includes the writes they cause: a write is noted where it is made by itself.
        Recorder._hear, Recorder._sample_once = timed(Recorder._hear), timed(Recorder._sample_once)  # type: ignore[method-assign]
        Recorder._tell_thinned = timed(Recorder._tell_thinned)  # type: ignore[method-assign]
    with ps.record(folder) if recorded else contextlib.nullcontext():
        ps.fit(model, ds, epochs=10_000, callbacks=[until], verbose=0)
    assert until.began is not None
    lasted_s, cpu_s = (b - a for a, b in zip(until.began, until.ended, strict=True))
    told = {"steps": until.steps, "step_cpu_s": cpu_s / until.steps, "seconds": lasted_s}
    if recorded:
        events = Path(folder, "events.jsonl")
        told |= {"share": sum(spent) / lasted_s, "lines_per_s": len(spent) / lasted_s}
        told |= {"bytes_per_s": events.stat().st_size / lasted_s}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

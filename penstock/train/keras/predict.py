"""Predicting on raw data with a trained run, streamed from disk to disk.

Covers: opening a run's model and recipe, batches of predictions, the columns that are written.
Does not cover: the file (guard/write_predictions.py), computing in parts that fit (guard/keras/predict.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.keras.predict import predict as guarded
from penstock.guard.write_predictions import write_predictions
from penstock.sources.images.source import ImageSource
from penstock.train.flow import raw_batches
from penstock.train.inspect import source_of
from penstock.train.keras.models import open_model
from penstock.train.recipe import Target, recipe_of_model

Columns = dict[str, np.ndarray]


def predict(
    model_file: Path,
    data: str,
    out: Path,
    *,
    query: str | None = None,
    batch: int = 256,
    progress: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write a prediction for every row of the data, in its order; returns the number of rows."""
    recipe = recipe_of_model(model_file)
    model = open_model(model_file)
    ds = raw_batches(data, recipe, query=query, batch=batch)
    source = source_of(ds)
    paths = source if isinstance(source, ImageSource) else None

    def batches() -> Iterator[Columns]:
        done = 0
        for outputs in guarded(model, ds):
            columns = columns_of(outputs, recipe.target)
            rows = len(next(iter(columns.values())))
            if paths is not None:
                named = [paths.files.path(row) for row in range(done, done + rows)]
                columns = {"path": np.array(named, object), **columns}
            done += rows
            progress(done)
            yield columns

    return write_predictions(batches(), out)


def columns_of(outputs: Any, target: Target) -> Columns:
    """What is written for a batch: the class, its probability and all probabilities; or the number, unscaled."""
    if not isinstance(outputs, np.ndarray):
        raise InvalidInput("The model has several outputs; only a single one can be written with names.")
    if target.task == "number":
        return {"prediction": outputs.reshape(len(outputs), -1)[:, 0].astype(np.float64) * target.std + target.mean}
    shares = probabilities(outputs.astype(np.float64))
    best = shares.argmax(axis=1)
    names = np.array(target.shown, object)
    return {
        "prediction": names[best],
        "probability": shares[np.arange(len(best)), best].astype(np.float32),
        "probabilities": shares.astype(np.float32),
    }


def probabilities(outputs: np.ndarray) -> np.ndarray:
    """Softmax of logits; what already sums to 1 is left as it is. One output is the probability of the second class."""
    if outputs.shape[1] == 1:
        inside = np.all((outputs >= 0) & (outputs <= 1))
        second = outputs if inside else 1 / (1 + np.exp(-outputs))
        return np.concatenate([1 - second, second], axis=1)
    if np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1, atol=1e-3):
        return outputs
    raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares: np.ndarray = raised / raised.sum(axis=1, keepdims=True)
    return shares

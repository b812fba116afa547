"""Pictures and tables as batches for `penstock shrink`.

Covers: data that `penstock train` reads, prepared as the model's own run has prepared it; pictures in class folders for
any Keras model.
Does not cover: arrays and functions (shrink_data.py), preparing (penstock.train).

A run folder keeps beside its model how raw rows become inputs and which rows it has validated on; a model that was
shrunk keeps the former under its own name. A model without either can be given pictures, which need no preparing but a
size; how its table columns were prepared is not known.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

from penstock.compress.data import Batches
from penstock.compress.files import KERAS_FILES
from penstock.core.errors import InvalidInput
from penstock.read.recognise.formats import kind_of
from penstock.train.config import Config, read_config
from penstock.train.flow import prepare, streams
from penstock.train.recipe import DataRecipe, recipe_of_model
from penstock.watch.run_folder import CONFIG, PREPARE, preparation_of

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")


class DataOpener:
    """Opens data for one model. `batch` is the number of rows in a batch."""

    def __init__(self, model: str, batch: int) -> None:
        self.model, self.batch = Path(model), batch
        # Only a model file lies in a run folder; net.py:build may be called from inside one by chance.
        self.run = self.model.parent if self.model.suffix in KERAS_FILES else None
        self._recipe: DataRecipe | None = None

    def whole(self, data: str) -> Batches:
        """All rows."""
        config = self._config(data, 0.0)
        return streams(config, self._learned(config)).train

    def halves(self, data: str, val: float) -> tuple[Batches, Batches, str]:
        """Rows to train on, rows kept back (those that the model's run has kept back), and a word on the latter."""
        config = self._config(data, val)
        found = streams(config, self._learned(config))
        if found.val is None:
            raise InvalidInput(f"{data} has too few rows to keep {config.val:.0%} of them back: name --held-out.")
        own = self._has(CONFIG)
        seen = ", as in the model's own run" if own else " (--val); the model may have seen them before"
        return found.train, found.val, f"{config.val:.0%} of {data}, not trained on here{seen}"

    def _config(self, data: str, val: float) -> Config:
        if val and self.run is not None and self._has(CONFIG):
            # The run's share and seed: then what is judged by is what the run has never trained on.
            ran = read_config(self.run)
            return dataclasses.replace(ran, data=data, batch=self.batch, val=ran.val or val)
        return Config(data, batch=self.batch, val=val, image_size=_size(self.model))

    def recipe(self) -> DataRecipe | None:
        """How raw data becomes the model's input, as far as that is known: then it is kept with the smaller model."""
        if self._recipe is None and self.run is not None and preparation_of(self.model).exists():
            self._recipe = recipe_of_model(self.model)
        return self._recipe

    def _has(self, name: str) -> bool:
        return self.run is not None and (self.run / name).exists()

    def _learned(self, config: Config) -> DataRecipe:
        known = self.recipe()
        if known is not None:
            return known
        if kind_of(config.data) in PICTURES:
            self._recipe = prepare(config)
        else:
            raise InvalidInput(
                f"{config.data} is {kind_of(config.data)}; how its columns become inputs of {self.model.name} is "
                f"written in {PREPARE}, which `penstock train` leaves beside a model and which is not there. "
                "Give an .npz of x and y, or data.py:function that returns batches."
            )
        return self._recipe


def _size(model: Path) -> tuple[int, int] | None:
    """The height and width of a Keras model's pictures, read from its file without opening the model."""
    try:
        with zipfile.ZipFile(model) as packed:
            config = json.loads(packed.read("config.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None  # a model of another kind, or a damaged one, which is refused by name when it is opened
    shape = next((found for found in _shapes(config) if len(found) == 4), None)
    if shape is None or None in shape[1:3]:
        return None
    return int(shape[1]), int(shape[2])


def _shapes(config: Any) -> list[list[Any]]:
    """The input shapes that a Keras config names, outer ones first."""
    found: list[list[Any]] = []
    if isinstance(config, dict):
        shape = config.get("batch_shape")
        found += [shape] if isinstance(shape, list) else []
        for part in config.values():
            found += _shapes(part)
    elif isinstance(config, list):
        for part in config:
            found += _shapes(part)
    return found

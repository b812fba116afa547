"""The model of a run, for the process that forecasts its memory.

Covers: `build`, called by guard/forecast/child.py as "train/keras/build.py:build"; the run folder comes in the
environment.
Does not cover: models (models.py), forecasting (guard/forecast/forecast.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.train.config import read_config
from penstock.train.recipe import read_recipe

RUN = "PENSTOCK_TRAIN_RUN"


def build() -> Any:
    """The compiled model that the run folder describes."""
    from penstock.train.keras.models import make_model

    folder = Path(os.environ[RUN])
    config, recipe = read_config(folder), read_recipe(folder)
    return make_model(config.model, recipe.inputs(), recipe.target, config.learning_rate)

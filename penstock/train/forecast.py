"""Will a batch fit, and if not, in which parts: asked before the framework is loaded.

Covers: one forecast for a run, and its event.
Does not cover: probing (guard/forecast/forecast.py).

The probe is a process of its own with its own copy of the framework. Asked before this process has loaded one, the two
are never in memory together.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.core.events import events
from penstock.core.sizes import size
from penstock.guard.forecast.forecast import ForecastOptions, forecast
from penstock.guard.forecast.subject import EXAMPLE_ROWS
from penstock.memory.limits import current_limit
from penstock.train.config import PRECISIONS, Config
from penstock.train.flow import Streams
from penstock.train.keras import build as keras_build
from penstock.train.keras.obvious import FRAMEWORK_NBYTES, obvious_nbytes
from penstock.train.recipe import DataRecipe

SECONDS = 8.0
"""How long the probe may try steps, once its framework is loaded."""
DATA_NBYTES = 64_000_000
DATA_SHARE = 0.08
"""What a forecast leaves to the data: the larger of the two, the second as a share of the limit."""


def room_for_model() -> int:
    """What the limit leaves beside the data; 0 or less if nothing."""
    limit = current_limit().nbytes
    return int(limit - max(DATA_NBYTES, DATA_SHARE * limit))


def fits_obviously(config: Config, recipe: DataRecipe) -> bool:
    """Whether a batch fits so plainly that trying it would be a waste of time; an event says so."""
    found = obvious_nbytes(config, recipe.inputs(), recipe.target.outputs, room_for_model())
    if found is None:
        return False
    limit = current_limit().nbytes
    beside = size(found - FRAMEWORK_NBYTES[config.backend])
    text = (
        f"no forecast needed: by its weights and activations, a batch of {config.batch} takes about {beside} "
        f"beside {config.backend}"
    )
    events.emit(
        "run.forecast", "train", text=text, fits=True, micro=config.batch, batch=config.batch, peak_nbytes=found,
        limit_nbytes=limit, obvious=True,
    )  # fmt: skip
    return True


def forecast_micro_batch(folder: Path, config: Config, found: Streams) -> int | None:
    """The micro-batch to begin with; None for the whole batch, also if no forecast could be made."""
    limit, room = current_limit().nbytes, room_for_model()
    if room <= 0:
        return None
    os.environ[keras_build.RUN] = str(folder)
    try:
        told = forecast(
            f"{keras_build.__file__}:build",
            found.example(EXAMPLE_ROWS),
            precision=PRECISIONS[config.precision] if config.precision == "mixed" else "float32",
            remat=False,
            memory=room,
            options=ForecastOptions(batch=config.batch, backend=config.backend, seconds=SECONDS),
        )
    except PenstockError as error:
        # A forecast is advice: without one the run begins with whole batches and learns by failing.
        events.emit("run.forecast", "train", text=f"no forecast: {error}", fits=None, micro=None)
        return None
    micro = told.micro_batch()
    events.emit(
        "run.forecast", "train", text=str(told), fits=told.fits, micro=micro, batch=config.batch,
        peak_nbytes=told.peak(), limit_nbytes=limit,
    )  # fmt: skip
    return None if told.fits else max(1, micro)

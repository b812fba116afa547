"""Steps whose meaning the engine knows, as inert values: normalising, augmenting, mixing batches up.

Covers: one frozen class per verb, checked when it is made.
Does not cover: running them (engine/prepare/), functions of users (steps.py).

They are maps to everything that moves steps around. Because the engine knows what they do, it does them where they
cost least: while rows are decoded into a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.plan.steps import Map

Layout = Literal["HWC", "CHW"]
Values = float | Sequence[float] | np.ndarray | Mapping[str, float]
Flip = Literal["horizontal", "vertical", "both"]

_FLIPS = ("horizontal", "vertical", "both")


@dataclass(frozen=True)
class Prepare(Map):
    """A change of some columns; rows stay rows. `columns` None: x of `(x, y)`, or a bare value."""

    function: Any = None
    columns: tuple[str, ...] | None = None

    def describe(self) -> str:
        """The verb and what was asked for."""
        own = [f for f in fields(self) if f.name not in ("function", "workers", "on_error")]
        given = [(f.name, getattr(self, f.name)) for f in own if getattr(self, f.name) != f.default]
        return f"{type(self).__name__.lower()}({', '.join(f'{name}={_short(value)}' for name, value in given)})"

    def signature(self) -> str:
        """Numbers may change between a run and its resumption, as a function's may."""
        return type(self).__name__


@dataclass(frozen=True)
class Normalise(Prepare):
    """(number * scale - mean) / std in float32, by channel or column."""

    scale: float = 1.0
    mean: tuple[tuple[str, float] | float, ...] = (0.0,)
    std: tuple[tuple[str, float] | float, ...] = (1.0,)
    layout: Layout = "HWC"

    def __post_init__(self) -> None:
        if self.layout not in ("HWC", "CHW"):
            raise InvalidInput(f"layout must be 'HWC' or 'CHW', not {self.layout!r}.")
        for name, value in (("scale", (self.scale,)), ("mean", self.mean), ("std", self.std)):
            numbers = [v[1] if isinstance(v, tuple) else v for v in value]
            if not np.all(np.isfinite(numbers)):
                raise InvalidInput(f"normalise: {name} must be of finite numbers, not {numbers}.")
            if name == "std" and not all(np.float32(n) > 0 for n in numbers):
                raise InvalidInput(f"normalise: a standard deviation must be above 0, not {min(numbers)}.")


@dataclass(frozen=True)
class Augment(Prepare):
    """Random changes of each picture, drawn from a generator of its own."""

    flip: Flip | None = None
    crop: float | None = None
    rotate: float = 0.0
    colour: float = 0.0
    cutout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.flip is not None and self.flip not in _FLIPS:
            raise InvalidInput(f"augment: flip must be one of {', '.join(_FLIPS)}, not {self.flip!r}.")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise InvalidInput(f"augment: crop is the least share of the area that is kept (0 to 1), not {self.crop}.")
        if not 0 <= self.rotate <= 180:
            raise InvalidInput(f"augment: rotate is the largest angle in degrees (0 to 180), not {self.rotate}.")
        for name in ("colour", "cutout"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidInput(f"augment: {name} must be from 0 to below 1, not {getattr(self, name)}.")
        if self.flip is None and self.crop is None and not (self.rotate or self.colour or self.cutout):
            raise InvalidInput("augment: say what to change: flip=, crop=, rotate=, colour= or cutout=.")


@dataclass(frozen=True)
class Mixup(Prepare):
    """Each sample of a batch blended with another one, x and y alike."""

    alpha: float = 0.2
    classes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise InvalidInput(f"mixup: alpha must be above 0, not {self.alpha}.")
        if self.classes is not None and self.classes < 2:
            raise InvalidInput(f"mixup: classes must be at least 2, not {self.classes}.")


def normalise_step(scale: float, mean: Values, std: Values, layout: Layout, columns: Any) -> Normalise:
    """The step that a user's arguments ask for; dicts of means and deviations name the columns."""
    named = [tuple(v) for v in (mean, std) if isinstance(v, Mapping)]
    if columns is None and named:
        columns = dict.fromkeys(name for names in named for name in names)
    chosen = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
    return Normalise(columns=chosen, scale=float(scale), mean=_values(mean), std=_values(std), layout=layout)


def _values(given: Values) -> tuple[Any, ...]:
    if isinstance(given, Mapping):
        return tuple((str(name), float(value)) for name, value in given.items())
    numbers = np.atleast_1d(np.asarray(given, np.float64))
    if numbers.ndim != 1 or not numbers.size:
        raise InvalidInput(f"normalise: mean and std are numbers, or one for each channel or column, not {given!r}.")
    return tuple(numbers.tolist())


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        shown = [_short(v) for v in value]
        return shown[0] if len(shown) == 1 else f"({', '.join(shown[:4])}{', ...' if len(shown) > 4 else ''})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

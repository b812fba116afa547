"""Augmenting pictures in place, each with a generator of its own.

Covers: crop, flip, rotate, colour and cutout of one picture, in this order; columns of pictures.
Does not cover: blending samples of a batch (mixup.py), which generator a sample has (engine/streams).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from penstock.core.block import Column, to_numpy
from penstock.core.errors import MissingExtra
from penstock.core.schema import OBJECT
from penstock.core.source import Buffers
from penstock.engine.prepare.columns import picture
from penstock.plan.prepare import Augment

Draw = Callable[[int], np.random.Generator]
"""The generator of the sample in a given row."""

_ASPECT = math.log(4 / 3)
"""How far a crop's sides may differ from the picture's, as is usual: 3/4 to 4/3."""


def augmented(step: Augment, name: str, column: Column, draw: Draw, buffers: Buffers) -> np.ndarray:
    """A changed copy of a column: its rows may belong to a cache."""
    array = to_numpy(column)
    if array.dtype == OBJECT:
        out = np.empty(len(array), object)
        for row, one in enumerate(array):
            out[row] = np.array(one, order="C")
            augment_rows(step, name, out[row][None], partial(_drawn, draw, row), buffers)
        return out
    made = buffers.empty(array.shape, array.dtype)
    made[...] = array
    augment_rows(step, name, made, draw, buffers)
    return made


def _drawn(draw: Draw, row: int, _: int) -> np.random.Generator:
    return draw(row)


def augment_rows(step: Augment, name: str, rows: np.ndarray, draw: Draw, buffers: Buffers) -> None:
    """Change pictures in place; one more of their size is used on the way."""
    picture(name, rows.dtype, rows.shape[1:])
    spare = buffers.empty(rows.shape[1:], rows.dtype)
    for number, one in enumerate(rows):
        _augment(step, one, spare, draw(number))


def _augment(step: Augment, one: np.ndarray, spare: np.ndarray, rng: np.random.Generator) -> None:
    if step.crop is not None:
        _crop(one, spare, step.crop, rng)
    if step.flip is not None:
        _flip(one, step.flip, rng)
    if step.rotate:
        _rotate(one, spare, float(rng.uniform(-step.rotate, step.rotate)))
    if step.colour:
        _colour(one, rng.uniform(1 - step.colour, 1 + step.colour, 3))
    if step.cutout:
        _cutout(one, step.cutout, rng)


def _crop(one: np.ndarray, spare: np.ndarray, least: float, rng: np.random.Generator) -> None:
    """A window of a random share of the area and a random shape, stretched to the whole picture."""
    height, width = one.shape[:2]
    side, aspect = math.sqrt(rng.uniform(least, 1)), math.exp(rng.uniform(-_ASPECT, _ASPECT) / 2)
    tall = min(height, max(1, round(height * side / aspect)))
    wide = min(width, max(1, round(width * side * aspect)))
    top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
    window = _flat(one[top : top + tall, left : left + wide])
    _cv2().resize(window, (width, height), dst=_flat(spare), interpolation=_cv2().INTER_LINEAR)
    one[...] = spare


def _flip(one: np.ndarray, axes: str, rng: np.random.Generator) -> None:
    across, down = (bool(drawn) for drawn in rng.integers(0, 2, 2))
    across, down = across and axes != "vertical", down and axes != "horizontal"
    if across or down:
        code = -1 if across and down else 1 if across else 0
        _cv2().flip(_flat(one), code, dst=_flat(one))


def _rotate(one: np.ndarray, spare: np.ndarray, degrees: float) -> None:
    """About the middle; what comes in from outside is the picture mirrored at its edges."""
    cv2 = _cv2()
    height, width = one.shape[:2]
    turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    cv2.warpAffine(
        _flat(one), turn, (width, height), dst=_flat(spare), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )
    one[...] = spare


def _colour(one: np.ndarray, factors: np.ndarray) -> None:
    """Brightness, contrast about the picture's own mean, and saturation, as one matrix; 8-bit numbers saturate."""
    brightness, contrast, saturation = (float(factor) for factor in factors)
    channels = one.shape[2]
    colours = min(channels, 3)  # a fourth channel is how opaque it is
    grey = float(np.mean(_cv2().mean(_flat(one))[:colours]))
    change = np.eye(channels, channels + 1)
    mixed = saturation * np.eye(colours) + (1 - saturation) / colours
    change[:colours, :colours] = brightness * contrast * mixed
    change[:colours, -1] = brightness * (1 - contrast) * grey
    _cv2().transform(_flat(one), change.astype(np.float32), dst=_flat(one))


def _cutout(one: np.ndarray, share: float, rng: np.random.Generator) -> None:
    height, width = one.shape[:2]
    side = round(share * min(height, width))
    top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    one[top : top + side, left : left + side] = 0


def _flat(one: np.ndarray) -> np.ndarray:
    """OpenCV knows no axis of one channel."""
    return one[:, :, 0] if one.shape[2] == 1 else one


@cache
def _cv2() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra(what="Augmenting pictures", extra="images") from error
    cv2.setNumThreads(0)  # the engine owns the cores
    return cv2

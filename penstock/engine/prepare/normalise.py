"""Normalising columns: (number * scale - mean) / std, in float32 and with the bits that NumPy gives.

Covers: the constants of each column, arrays into given ones, columns into recycled ones.
Does not cover: the loop over numbers (native/normalise.py).
"""

from __future__ import annotations

import numpy as np

from penstock.core.block import Column, to_numpy
from penstock.core.errors import InvalidInput
from penstock.core.schema import OBJECT
from penstock.core.source import Buffers
from penstock.native.normalise import KINDS, normalise
from penstock.plan.prepare import Normalise


def normalised(step: Normalise, name: str, column: Column, buffers: Buffers) -> np.ndarray:
    """A column as it becomes; rows of different shapes stay an array of arrays."""
    array = to_numpy(column)
    if array.dtype == OBJECT:
        out = np.empty(len(array), object)
        for row, one in enumerate(array):
            out[row] = normalised(step, name, np.asarray(one)[None], buffers)[0]
        return out
    made = buffers.empty((len(array), *_shape(step, array.shape[1:])), np.float32)
    normalise_into(step, name, array, made)
    return made


def normalise_into(step: Normalise, name: str, array: np.ndarray, out: np.ndarray) -> None:
    """Rows into `out`, which may be the array itself where dtype and shape stay."""
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"normalise: column {name!r} of {array.dtype} is not of numbers.")
    numbers = array if array.dtype in KINDS else array.astype(np.float32)
    numbers = np.ascontiguousarray(numbers)
    if numbers.ndim == 1:  # one number a row
        numbers, out = numbers[:, None], out[:, None]
    channels = numbers.shape[-1]
    mean, std = (_constants(step, name, what, channels) for what in ("mean", "std"))
    normalise(numbers, out, scale=step.scale, mean=mean, std=std, channels_first=step.layout == "CHW")


def _shape(step: Normalise, shape: tuple[int, ...]) -> tuple[int, ...]:
    if step.layout == "HWC":
        return shape
    if len(shape) != 3:
        raise InvalidInput(f"normalise: layout='CHW' is for pictures of height x width x channels, not {shape}.")
    return (shape[2], shape[0], shape[1])


def _constants(step: Normalise, name: str, what: str, channels: int) -> np.ndarray:
    values = getattr(step, what)
    if values and isinstance(values[0], tuple):
        return np.float32(dict(values).get(name, 0.0 if what == "mean" else 1.0)).reshape(1)
    if len(values) not in (1, channels):
        raise InvalidInput(
            f"normalise: {what} has {len(values)} values where column {name!r} has {channels} in its last axis."
        )
    return np.array(values, np.float32)

"""Numbers to float32: (number * scale - mean) / std, with a mean and std for each channel.

Covers: channels last to channels last or first, into a given array (native/normalise.c).
Does not cover: decoding (native/jpeg.py). NumPy's float32 arithmetic gives the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, FLOAT32, INT32, INT64, Kernel, address

MOST_CHANNELS = 16
"""Channels of pictures that are laid out channels first; with channels last there may be any number."""

_KINDS = {
    np.dtype(kind): number
    for number, kind in enumerate((np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.float32, np.float64))
}
KINDS = frozenset(_KINDS)
"""What can be normalised."""

_normalise = Kernel(
    "normalise", INT32, ADDRESS, INT32, INT64, INT64, INT64, ADDRESS, ADDRESS, FLOAT32, INT32, ADDRESS
)  # fmt: skip


def normalise(
    numbers: np.ndarray,
    out: np.ndarray,
    *,
    scale: float = 1.0,
    mean: np.ndarray | float = 0.0,
    std: np.ndarray | float = 1.0,
    channels_first: bool = False,
) -> None:
    """Numbers of ... x channels into `out`, float32 of the same shape, or from ... x h x w x c to ... x c x h x w.

    `out` may be `numbers` itself where the shape stays.
    """
    if channels_first:
        *before, height, width, channels = numbers.shape
        shape, count, pixels = (*before, channels, height, width), math.prod(before), height * width
    else:
        shape, channels = numbers.shape, numbers.shape[-1]
        count, pixels = 1, math.prod(numbers.shape[:-1])
    if numbers.dtype not in _KINDS or out.dtype != np.float32 or (channels_first and channels > MOST_CHANNELS):
        raise InvalidInput(
            f"normalise takes integers and floats (channels first: of 1 to {MOST_CHANNELS} channels) to float32, "
            f"not {numbers.dtype} of {channels} to {out.dtype}."
        )
    if out.shape != shape or not (numbers.flags.c_contiguous and numbers.flags.aligned and out.flags.carray):
        raise InvalidInput(f"normalise needs a contiguous array of shape {shape} to write to, not {out.shape}.")
    if not out.size:
        return
    means, stds = (np.broadcast_to(np.asarray(v, np.float32), (channels,)).copy() for v in (mean, std))
    places = address(means), address(stds), scale, int(channels_first), address(out)
    _normalise(address(numbers), _KINDS[numbers.dtype], count, pixels, channels, *places)

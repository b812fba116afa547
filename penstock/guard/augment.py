"""Augmentation that does not copy the batch.

Covers: flip, crop, brightness, normalise and mixup as functions over a block's arrays, for `map_batches`.
Does not cover: augmenting one sample at a time, which any function given to `map` can do.

Each function returns a function that takes the batch `(x, y)`, a dict, or a bare array of images (rows, height, width,
channels), changes the images in place where their type and shape allow it, and returns the batch. Random choices come
from a generator seeded by `seed` and by the data itself, so that a batch is augmented the same way whenever it is read
again, and differently from every other batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput

Augment = Callable[[Any], Any]


def flip(*, horizontal: bool = True, vertical: bool = False, seed: int = 0, key: str | None = None) -> Augment:
    """Mirror each image with probability one half per axis, in place."""

    def change(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for wanted, axis in ((horizontal, 1), (vertical, 0)):
            if wanted:
                for row in np.flatnonzero(rng.random(len(images)) < 0.5):
                    # One image is copied, never the batch.
                    images[row] = np.flip(images[row], axis).copy()
        return images

    return _on_images(change, seed, key)


def crop(height: int, width: int, *, seed: int = 0, key: str | None = None) -> Augment:
    """Cut the same random window out of all images of a batch; the result is a view, without a copy."""
    if height < 1 or width < 1:
        raise InvalidInput(f"A crop needs at least one pixel, not {height} x {width}.")

    def change(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if images.ndim < 3 or images.shape[1] < height or images.shape[2] < width:
            raise InvalidInput(f"Images of shape {images.shape[1:]} cannot be cropped to {height} x {width}.")
        top = int(rng.integers(images.shape[1] - height + 1))
        left = int(rng.integers(images.shape[2] - width + 1))
        return images[:, top : top + height, left : left + width]

    return _on_images(change, seed, key)


def brightness(amount: float, *, seed: int = 0, key: str | None = None) -> Augment:
    """Multiply each image by a random factor in 1 - amount .. 1 + amount, in place; whole numbers saturate."""
    if not 0 <= amount <= 1:
        raise InvalidInput(f"brightness takes an amount from 0 to 1, not {amount}.")

    def change(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        factors = rng.uniform(1 - amount, 1 + amount, len(images)).astype(np.float32)
        whole = np.issubdtype(images.dtype, np.integer)
        for image, factor in zip(images, factors, strict=True):
            if whole:
                limits = np.iinfo(images.dtype)
                image[...] = np.clip(np.rint(image * factor), limits.min, limits.max)
            else:
                np.multiply(image, factor.astype(images.dtype), out=image)
        return images

    return _on_images(change, seed, key)


def normalise(mean: Any, std: Any, *, key: str | None = None) -> Augment:
    """Subtract the mean and divide by the standard deviation; in place for float32, else one float32 copy."""
    mean32, std32 = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if not np.all(std32 > 0):
        raise InvalidInput(f"A standard deviation must be above 0, not {std}.")

    def change(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = images if images.dtype == np.float32 and images.flags.writeable else np.empty(images.shape, np.float32)
        np.subtract(images, mean32, out=out)
        np.divide(out, std32, out=out)
        return out

    return _on_images(change, 0, key)


def mixup(alpha: float = 0.2, *, seed: int = 0) -> Augment:
    """Blend every sample with its neighbour in the batch, images and targets alike, in place.

    Needs float images and float targets (one-hot classes); one sample is copied, never the batch.
    """
    if alpha <= 0:
        raise InvalidInput(f"mixup needs alpha above 0, not {alpha}.")

    def run(batch: Any) -> Any:
        if not isinstance(batch, tuple) or len(batch) < 2:
            raise InvalidInput("mixup needs batches of (images, targets).")
        images, targets = _writeable(batch[0]), _writeable(batch[1])
        for name, array in (("images", images), ("targets", targets)):
            if not np.issubdtype(array.dtype, np.floating):
                raise InvalidInput(f"mixup needs float {name}, not {array.dtype}; make classes one-hot first.")
        share = float(np.random.default_rng([seed, _mark(images)]).beta(alpha, alpha))
        for array in (images, targets):
            first = array[0].copy()
            for row in range(len(array)):
                neighbour = array[row + 1] if row + 1 < len(array) else first
                array[row] *= share
                array[row] += (1 - share) * neighbour
        return (images, targets, *batch[2:])

    return run


def _on_images(change: Callable[[np.ndarray, np.random.Generator], np.ndarray], seed: int, key: str | None) -> Augment:
    """Apply a change to the images of a batch, wherever they are in it."""

    def run(batch: Any) -> Any:
        if isinstance(batch, tuple):
            return (run(batch[0]), *batch[1:])
        if isinstance(batch, dict):
            name = _image_key(batch, key)
            return {**batch, name: run(batch[name])}
        images = _writeable(np.asarray(batch))
        return change(images, np.random.default_rng([seed, _mark(images)]))

    return run


def _image_key(batch: dict[str, Any], key: str | None) -> str:
    if key is not None:
        if key not in batch:
            raise InvalidInput(f"The batch has no column {key!r}; it has {', '.join(batch)}.")
        return key
    found = [name for name, value in batch.items() if np.ndim(value) >= 4]
    if len(found) != 1:
        raise InvalidInput(f"Which column holds the images? Give key=; the batch has {', '.join(batch)}.")
    return found[0]


def _mark(images: np.ndarray) -> int:
    """A number that belongs to this batch's content: a checksum of a few of its rows."""
    picked = images[:: max(1, len(images) // 4)][:4]
    return zlib.crc32(np.ascontiguousarray(picked).tobytes())


def _writeable(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()

"""Whether a batch fits so plainly that it need not be tried first.

Covers: counting weights and activations of the models that come with the command, from the recipe alone.
Does not cover: trying small steps (forecast.py), users' own models, whose size is known only once they are built.

A forecast starts a second copy of the framework and takes half a minute; most runs have a small model and a large
limit. The count is generous on purpose: where it is wrong, the guard still splits the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.train.config import MODELS, Config
from penstock.train.recipe import InputSpec

FRAMEWORK_NBYTES = {"tensorflow": 750_000_000, "torch": 800_000_000, "jax": 650_000_000}
"""A process that has loaded Keras with a backend and built a model (measured: 690, 710 and 570 MB), rounded up."""

_NUMBER_NBYTES = 4
_COPIES_OF_WEIGHTS = 6
"""Weights, gradients, accumulated gradients, Adam's two, and one to spare."""
_COPIES_OF_ACTIVATIONS = 2
"""Values, their gradients, and what convolutions and reductions take on the way. Not all is there at once: probes of
the picture model found 0.9 copies on TensorFlow and 1.2 on torch."""
_TIMES = 2
"""How many times the count must fit."""
_NEARLY = 1.1
"""The framework's need is rounded up: a little less room than that may do."""
_LITTLE = 0.2
"""A batch that takes no more than this share of the limit is not worth a forecast: smaller parts would save no more."""


@dataclass(frozen=True)
class Count:
    """Numbers that a model holds: once, and for each row of a batch."""

    weights: int
    activations: int

    def nbytes(self, batch: int) -> int:
        """What training takes beside the framework."""
        once, each = _COPIES_OF_WEIGHTS * self.weights, _COPIES_OF_ACTIVATIONS * self.activations
        return _NUMBER_NBYTES * (once + batch * each)


def obvious_nbytes(config: Config, inputs: Mapping[str, InputSpec], outputs: int, room: int) -> int | None:
    """What the run will take, if that is far less than there is room for; None if it has to be tried."""
    if config.model not in ("auto", *MODELS):
        return None
    taken = count(config.model, inputs, outputs).nbytes(config.batch)
    framework = FRAMEWORK_NBYTES[config.backend]
    plain = framework + _TIMES * taken <= room
    # Where the framework alone nearly fills the limit, a forecast would load a second copy of it under the same limit,
    # which costs more than half a minute, to choose between sizes that differ by next to nothing.
    little = framework <= _NEARLY * room and _TIMES * taken <= _LITTLE * room
    return framework + taken if plain or little else None


def count(name: str, inputs: Mapping[str, InputSpec], outputs: int) -> Count:
    """Weights and activations of the small model for these inputs (train/keras/models.py), rather more than fewer."""
    parts = [_COUNTS[key](spec, name) for key, spec in inputs.items()]
    joined = sum(width for _, width in parts)
    weights = sum(part.weights for part, _ in parts) + (joined + 1) * 64 + 65 * outputs
    return Count(weights, sum(part.activations for part, _ in parts) + joined + 64 + outputs)


def _image(spec: InputSpec, name: str) -> tuple[Count, int]:
    height, width, channels = spec.shape
    pixels = math.prod(spec.shape)
    if name == "mlp":
        return Count((pixels + 1) * 128, 2 * pixels + 128), 128
    side = min(height, width)
    stride = 4 if side > 112 else 2 if side > 56 else 1
    area = -(-height // stride) * -(-width // stride)
    activations, weights = 2 * pixels + 2 * area * 16, 26 * channels * 16
    # Pooling quarters the picture before the second and third layer, unless it is tiny: counted as if it never did.
    for before, filters in ((16, 32), (32, 64)):
        area = max(9, area // 4) if side > 12 else area
        activations += 2 * area * filters
        weights += 10 * before * filters
    return Count(weights, activations), 64 * min(64, area)  # larger than 8 x 8 is averaged, the rest laid out flat


def _text(spec: InputSpec, name: str) -> tuple[Count, int]:
    return Count(spec.sizes[0] * 32 + 100 * 64, spec.shape[0] * (32 + 2 * 64)), 64


def _numbers(spec: InputSpec, name: str) -> tuple[Count, int]:
    return Count((spec.shape[0] + 1) * 64, spec.shape[0] + 2 * 64), 64


def _categories(spec: InputSpec, name: str) -> tuple[Count, int]:
    widths = [min(16, 2 + size // 4) for size in spec.sizes]
    return Count(sum(a * b for a, b in zip(spec.sizes, widths, strict=True)), 2 * sum(widths)), sum(widths)


_COUNTS = {"image": _image, "text": _text, "numbers": _numbers, "categories": _categories}

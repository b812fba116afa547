"""Which weights stay when small ones go.

Covers: magnitude masks for a layer or for all of them, N:M masks, the schedule along which sparsity grows.
Does not cover: holding masks during training (prune.py), removing whole channels (width.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.compress.data import Array
from penstock.compress.thin.channels import Mask
from penstock.core.errors import InvalidInput


@dataclass(frozen=True)
class Schedule:
    """Sparsity grows from 0 to `final` over steps begin..end along a cubic curve, then stays."""

    final: float
    begin: int = 0
    end: int = 0
    every: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.final < 1:
            raise InvalidInput(f"Sparsity must be at least 0 and below 1, not {self.final}.")
        if self.begin < 0 or self.end < self.begin or self.every < 1:
            raise InvalidInput(f"A schedule needs 0 <= begin <= end and every >= 1, not {self}.")

    def sparsity(self, step: int) -> float:
        """The share of weights that are zero after `step`."""
        if step >= self.end:
            return self.final if step >= self.begin else 0.0
        if step < self.begin:
            return 0.0
        left = 1 - (step - self.begin) / (self.end - self.begin)
        return self.final * (1 - left**3)

    def due(self, step: int) -> bool:
        """Whether masks are drawn anew at this step."""
        return step == self.end or (self.begin <= step < self.end and (step - self.begin) % self.every == 0)


def magnitude_masks(weights: Mapping[str, Array], sparsity: float, *, scope: str = "layer") -> dict[str, Mask]:
    """True where a weight stays: the largest of each layer, or of all layers together."""
    if scope == "layer":
        return {name: _largest(np.abs(values), sparsity) for name, values in weights.items()}
    if scope != "global":
        raise InvalidInput(f"scope must be 'layer' or 'global', not {scope!r}.")
    # Layers differ in scale by their fan-in, so each is measured in units of its own mean magnitude.
    relative = {name: np.abs(values) / max(float(np.abs(values).mean()), 1e-30) for name, values in weights.items()}
    joined = np.concatenate([values.ravel() for values in relative.values()])
    stays = _largest(joined, sparsity)
    masks, start = {}, 0
    for name, values in relative.items():
        masks[name] = stays[start : start + values.size].reshape(values.shape)
        start += values.size
    return masks


def n_m_mask(values: Array, n: int, m: int, axis: int) -> Mask | None:
    """True for the n largest of every m neighbours along an axis; None where m does not divide it."""
    if not 0 < n < m:
        raise InvalidInput(f"N:M sparsity needs 0 < N < M, not {n}:{m}.")
    moved = np.moveaxis(np.abs(values), axis, -1)
    if moved.shape[-1] % m:
        return None
    groups = moved.reshape(-1, m)
    mask = np.zeros(groups.shape, dtype=bool)
    np.put_along_axis(mask, np.argsort(-groups, axis=1, kind="stable")[:, :n], True, axis=1)
    return np.moveaxis(mask.reshape(moved.shape), -1, axis)


def _largest(values: Array, sparsity: float) -> Mask:
    gone = round(values.size * sparsity)
    mask = np.ones(values.size, dtype=bool)
    if gone:
        mask[np.argpartition(values.ravel(), gone - 1)[:gone]] = False
    return mask.reshape(values.shape)

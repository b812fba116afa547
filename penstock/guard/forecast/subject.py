"""What a probe asks of a model, whatever its framework.

Covers: the protocol, growing an example batch to any number of rows, choosing a loss by the labels.
Does not cover: any framework (guard/keras/forecast.py, guard/torch/forecast.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten, unflatten
from penstock.guard.forecast.result import Setting
from penstock.guard.recovery.microbatch import Part, count_rows

EXAMPLE_ROWS = 32
"""Rows of the user's batch that travel to the child; larger batches repeat them."""


class Phases(Protocol):
    """The part of a guard's stepper that a probe drives."""

    def begin(self, parts: Sequence[Part]) -> None: ...
    def part(self, part: Part) -> None: ...
    def prepare(self) -> None: ...
    def apply(self) -> None: ...


class Subject(Protocol):
    """One model in one setting, ready to take the guard's steps."""

    who: str
    framework: str
    precision: str
    keeps: bool
    """Whether the framework keeps what a step took, for the next one."""
    at_once: bool
    """Whether a batch in one part takes its whole step in `train.apply`."""

    @property
    def train(self) -> Phases:
        """The guard's training step."""

    @property
    def evaluate(self) -> Phases:
        """The guard's evaluation step."""

    def state(self) -> Mapping[str, int]:
        """Bytes of 'parameters', 'gradients', 'optimizer', the guard's 'copies'; 'held' stays between steps."""

    def batch(self, rows: int) -> Any:
        """A batch as the steps take it."""

    def fill(self) -> object:
        """Use up what the framework keeps free, as long as the result is held."""

    def save(self, path: Path) -> None:
        """Write what a checkpoint would hold."""

    def compiled(self, rows: int) -> float | None:
        """Bytes of a part's gradients by the compiler's own account, without running; None if it gives none."""


class Maker(Protocol):
    """Makes a fresh model for each setting."""

    def make(self, setting: Setting) -> Subject | None:
        """The model in a setting; without a precision it keeps its own. None if it cannot be rematerialised."""


def shown_rows(batch: Any, rows: int) -> Any:
    """The first rows of a batch as NumPy arrays."""
    tree, leaves = flatten(batch)
    return unflatten(tree, lambda name: None if leaves[name] is None else np.asarray(leaves[name][:rows]))


def grown(example: Any, rows: int) -> Any:
    """A batch of so many rows, made by repeating an example's."""
    where = np.arange(rows) % count_rows(example)
    tree, leaves = flatten(example)
    return unflatten(tree, lambda name: None if leaves[name] is None else np.take(leaves[name], where, axis=0))


def tree_nbytes(batch: Any) -> int:
    """Bytes of all arrays of a batch."""
    return sum(leaf.nbytes for leaf in flatten(batch)[1].values() if leaf is not None)


def labels_of(example: Any) -> np.ndarray:
    """The second entry of a batch, from which a loss can be guessed."""
    if not isinstance(example, tuple) or len(example) < 2 or not hasattr(example[1], "dtype"):
        raise InvalidInput("No loss was given, and it can be guessed only for batches of (x, y). Pass loss=.")
    return np.asarray(example[1])


def is_classes(labels: np.ndarray) -> bool:
    """Whether labels are class numbers."""
    return labels.dtype.kind in "iub" and (labels.ndim == 1 or labels.shape[-1] == 1)

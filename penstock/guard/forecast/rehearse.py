"""The worst batch, found before the long run meets it.

Covers: telling whether a dataset's batches differ in length, and making a batch as large as the largest one looked at.
Does not cover: trying it and putting everything back (guard/keras/loop.py).

Only shapes are remembered while looking: the worst batch is made from one real batch, whose values are repeated along
every axis up to the largest extent seen anywhere. So it is at least as large as each batch seen, and its values are
ones that the model knows (token ids stay in their range).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.events import events
from penstock.core.tree import flatten, unflatten
from penstock.plan.steps import Batch

LOOK_BATCHES = 200
LOOK_S = 3.0
"""How long, and at how many batches, is looked before the run."""


def lengths_vary(ds: object) -> bool:
    """Whether a dataset's batches are padded, each to its own longest row. Unknown iterables are taken as even."""
    todo = [getattr(ds, "node", None)]
    while todo:
        node = todo.pop()
        if node is None:
            continue
        if isinstance(node.step, Batch) and node.step.pad not in (None, False):
            return True
        todo += list(getattr(node, "inputs", ()))
    return False


def worst_batch(
    ds: Iterable[Any], *, seconds: float = LOOK_S, most: int = LOOK_BATCHES, clock: Callable[[], float] = time.monotonic
) -> Any:
    """A batch as large in every extent as the largest of the first batches; None if there are none.

    The dataset is iterated anew; use a dataset or a list, not an iterator.
    """
    extents: dict[str, tuple[int, ...]] = {}
    sample, looked, end_s = None, 0, clock() + seconds
    for batch in islice(_fresh(ds), most):
        tree, leaves = flatten(batch)
        for name, leaf in leaves.items():
            shape = tuple(int(side) for side in getattr(leaf, "shape", ()))
            known = extents.get(name, shape)
            extents[name] = tuple(map(max, known, shape)) if len(known) == len(shape) else shape
        if sample is None:
            sample = tree, {name: None if leaf is None else np.array(leaf) for name, leaf in leaves.items()}
        looked += 1
        if clock() >= end_s:
            break
    if sample is None:
        return None
    tree, leaves = sample
    events.emit("guard.worst_batch", type(ds).__name__, looked=looked, shapes={k: list(v) for k, v in extents.items()})
    return unflatten(tree, lambda name: stretched(leaves[name], extents[name]))


def stretched(array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array repeated along every axis up to this shape. None stands for an array that is not there."""
    if array is None:
        return None
    for axis, extent in enumerate(shape):
        if array.shape[axis] != extent and array.shape[axis]:
            array = np.take(array, np.arange(extent) % array.shape[axis], axis=axis)
    return array


def _fresh(ds: Iterable[Any]) -> Iterator[Any]:
    """Batches of an iteration of its own, which uses up no epoch and is closed when it is left."""
    at_epoch = getattr(ds, "at_epoch", None)
    iterator = iter(at_epoch(0) if at_epoch is not None else ds)
    try:
        yield from iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

"""Batches as shrinking needs them: streamed, again and again, never gathered.

Covers: checking a stream of `(x, y)` batches, inputs and labels of one or several arrays, tasks, keys of rows.
Does not cover: reading datasets (penstock.read), batching (engine/), a copy on disk (spill.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from penstock.core.errors import InvalidInput

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = Array | tuple[Array, ...] | dict[str, Array]
"""One array, several in order, or several by name. Labels come in the same forms."""
Outputs = Array | dict[str, Array]
"""What a model gives: one array, or several by name in the order of the model."""
Pair = tuple[Inputs, Inputs]
Batches = Iterable[Pair]
Task = Literal["classify", "regress"]
CALIBRATION_ROWS = 256
"""Rows whose activation ranges are measured: LiteRT's own advice is 100 to 500."""


def pairs(batches: Batches, what: str = "data") -> Iterator[Pair]:
    """One fresh pass over the batches as `(x, y)` of NumPy arrays."""
    stream = iter(batches)
    if stream is batches:
        raise InvalidInput(
            f"{what} is an iterator, which is used up after one pass. Pass a dataset or list of batches instead: "
            "each iter() must start a fresh pass."
        )
    for number, batch in enumerate(stream):
        if isinstance(batch, Mapping) and set(batch) == {"x", "y"}:
            batch = (batch["x"], batch["y"])
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidInput(
                f"Batch {number} of {what} is a {type(batch).__name__}; batches must be pairs (x, y). "
                "Map samples to (x, y) tuples, or to a dict with the columns 'x' and 'y'."
            )
        x, y = _tree(batch[0]), _tree(batch[1])
        for name, part in arrays(y).items():
            if count(x) != len(part):
                called = f" of output {name!r}" if name else ""
                raise InvalidInput(f"Batch {number} of {what} has {count(x)} inputs but {len(part)} labels{called}.")
        yield x, y


def _tree(given: object) -> Inputs:
    if isinstance(given, Mapping):
        return {str(name): np.asarray(part) for name, part in given.items()}
    return tuple(np.asarray(part) for part in given) if isinstance(given, tuple) else np.asarray(given)


def first(batches: Batches, what: str = "data") -> Pair:
    """The first batch; raises when there is none."""
    for pair in pairs(batches, what):
        return pair
    raise InvalidInput(f"{what} holds no batch.")


def count(x: Inputs) -> int:
    """Rows of a batch."""
    return len(next(iter(arrays(x).values())))


def arrays(x: Inputs) -> dict[str, Array]:
    """The arrays of inputs, labels or outputs by name; a bare array is named ''."""
    if isinstance(x, dict):
        return x
    return {str(i): part for i, part in enumerate(x)} if isinstance(x, tuple) else {"": x}


def nbytes(x: Inputs) -> int:
    """Bytes of all arrays of a batch's inputs, labels or outputs."""
    return sum(part.nbytes for part in arrays(x).values())


def rows(x: Inputs, start: int, stop: int) -> Inputs:
    """Some rows of a batch's inputs, as views."""
    if isinstance(x, dict):
        return {name: part[start:stop] for name, part in x.items()}
    return tuple(part[start:stop] for part in x) if isinstance(x, tuple) else x[start:stop]


def bare(parts: dict[str, Array]) -> Outputs:
    """The array itself where there is only a nameless one."""
    return parts[""] if set(parts) == {""} else parts


def by_output(given: Inputs, names: Iterable[str], what: str = "labels") -> dict[str, Array]:
    """Labels (or a teacher's outputs) under the names of a model's outputs: matched by name, else by order."""
    parts, wanted = arrays(given), list(names)
    if set(parts) == set(wanted):
        return {name: parts[name] for name in wanted}
    named = isinstance(given, dict) and what == "labels"
    if len(parts) != len(wanted) or named:
        shown = ", ".join(wanted) if any(wanted) else "one output"
        got = ", ".join(parts) if any(parts) else "one array"
        raise InvalidInput(f"The {what} are {got}; the model gives {shown}. They must agree in number and names.")
    return dict(zip(wanted, parts.values(), strict=True))


def _one_hot(y: Array) -> bool:
    return y.ndim == 2 and y.shape[1] > 1 and bool(np.all((y == 0) | (y == 1))) and bool(np.all(y.sum(1) == 1))


def task_of(y: Array) -> Task:
    """Classes when labels are whole numbers or one-hot rows, otherwise numbers to predict."""
    return "classify" if y.dtype.kind in "iub" or _one_hot(y) else "regress"


def labels(y: Array, task: Task) -> Array:
    """Class numbers, or float targets."""
    if task == "regress":
        return y.astype(np.float32)
    if _one_hot(y):
        return np.asarray(y.argmax(axis=1), dtype=np.int64)
    return y.reshape(len(y)).astype(np.int64) if y.ndim == 2 and y.shape[1] == 1 else y.astype(np.int64)


def row_keys(x: Inputs) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A 64-bit fingerprint of every row, by which it is known again in whatever order it comes."""
    keys = np.empty(count(x), dtype=np.uint64)
    parts = [np.ascontiguousarray(part) for part in arrays(x).values()]
    for i in range(len(keys)):
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            digest.update(part[i].tobytes())
        keys[i] = int.from_bytes(digest.digest(), "little")
    return keys


class Head:
    """The first rows of a stream of batches, again and again. Rows are views of the stream's own batches."""

    def __init__(self, batches: Batches, most: int, what: str = "calibration") -> None:
        self.batches, self.most, self.what = batches, most, what

    def __iter__(self) -> Iterator[Pair]:
        left = self.most
        for x, y in pairs(self.batches, self.what):
            if left <= 0:
                return
            yield rows(x, 0, left), rows(y, 0, left)
            left -= count(x)

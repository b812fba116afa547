"""Old values of arrays that a JAX step may consume.

Covers: writing arrays to a file before they are donated, and making them again from it.
Does not cover: when to donate (guard/jax/parts.py, guard/keras/backends/jax.py).

A step that is given its inputs writes the new values over the old ones, and so needs no second copy of weights and
optimizer state. If it fails they are gone; they are then read back from the file, into the memory that they left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.guard.recovery.undo.file import UndoFile, bytes_of


class DonatedUndo:
    """A file with the bytes of some arrays."""

    def __init__(self) -> None:
        self._file = UndoFile()

    def save(self, arrays: Sequence[Any]) -> None:
        """Write the arrays. On the CPU their memory is lent, not copied."""
        self._file.save([bytes_of(np.ascontiguousarray(array)) for array in arrays])

    def load(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays with the values that were saved, in the shapes and types of these, which may be consumed."""
        found, at = [], 0
        for array in arrays:
            host = np.empty(array.shape, array.dtype)
            self._file.load([bytes_of(host)], at=at)
            at += host.nbytes
            found.append(jax.device_put(host, array.sharding))
        return found


def share_memory(tree: Any, other: Any) -> bool:
    """Whether arrays of both lie in the same memory, as where an optimizer keeps the parameters that it was given."""
    places = [{leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(each) if leaf.nbytes} for each in (tree, other)]
    return bool(places[0] & places[1])


def can_donate(arrays: Sequence[Any]) -> bool:
    """Whether all are plain numbers on one CPU, which a step there can write over."""
    return all(
        isinstance(array, jax.Array)
        and not jnp.issubdtype(array.dtype, jax.dtypes.extended)
        and {device.platform for device in array.devices()} == {"cpu"}
        for array in arrays
    )

"""Hand-over to JAX.

Covers: arrays over batch buffers on the CPU, one transfer to other devices, shardings.
Does not cover: dividing data among hosts (`ds.shard`).
"""

from __future__ import annotations

from typing import Any

from penstock.core.errors import MissingExtra
from penstock.feed.convert import Converted, Streamed, listed, numeric

try:
    import jax
except ImportError as error:
    raise MissingExtra(what="ds.jax()", extra="jax") from error


def to_jax(value: Any, where: Any = None) -> Any:
    """A leaf as a JAX array: the same memory on the CPU, if it begins at 64 bytes; text and bytes as lists."""
    array = numeric(value)
    if array is None:
        return listed(value, lambda v: to_jax(v, where))
    return jax.device_put(array, where)


class JaxFeed:
    """A dataset as JAX takes it: each pass is the next epoch. `sharding` is a device or a sharding of batches."""

    def __init__(self, dataset: Streamed, sharding: Any = None) -> None:
        self._dataset, self._sharding = dataset, sharding

    def __iter__(self) -> Converted:
        sharding = self._sharding
        return Converted(iter(self._dataset), lambda value: to_jax(value, sharding))

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

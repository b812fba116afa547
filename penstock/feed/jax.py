"""Hand-over to JAX.

Covers: arrays over batch buffers on the CPU, one transfer to other devices, shardings, one batch put ahead.
Does not cover: dividing data among hosts (`ds.shard`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from penstock.core.errors import MissingExtra
from penstock.core.events import fell_back
from penstock.feed.convert import Converted, OneAhead, Streamed, aligned, listed, numeric

try:
    import jax
except ImportError as error:
    raise MissingExtra(what="ds.jax()", extra="jax") from error

try:
    # Where `device_put` ends up: 2 microseconds instead of 33, which counts for batches of a thousand small rows.
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    _put: Any = xla_client.batched_device_put
except (ImportError, AttributeError):  # another JAX: the public way
    fell_back("JAX", "what device_put calls has moved, so arrays take ten times as long to hand over")
    _put = None


_SMALL_NBYTES = 16_384
"""Up to here JAX's own copy, where an array does not begin at 64 bytes, costs less than finding a place for another."""


def to_jax(value: Any, where: Any = None) -> Any:
    """A leaf as a JAX array: the same memory on the CPU; text and bytes as lists.

    JAX takes memory as it is where it begins at 64 bytes. What begins elsewhere it copies four times slower than NumPy
    does (1.8 against 0.5 ms for 4.8 MB), so that is copied here.
    """
    array = numeric(value)
    if array is None:
        return listed(value, lambda v: to_jax(v, where))
    if not _on_cpu(where):
        return jax.device_put(array, where)
    wanted = _known(array.dtype)
    if array.nbytes > _SMALL_NBYTES or not array.flags.carray:
        array = aligned(array, wanted)
    elif wanted != array.dtype:
        array = array.astype(wanted)
    if _put is None or getattr(jax.config, "jax_default_device", None) is not None:
        return jax.device_put(array)
    device, sharding = _here()
    return _put(_abstract(array.shape, array.dtype), sharding, [array], [device], committed=False)


def _on_cpu(where: Any) -> bool:
    """Whether arrays stay in this memory."""
    return where is None and jax.default_backend() == "cpu"


def _known(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that JAX makes of this one: 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set."""
    found: np.dtype[Any] = dtype if dtype.itemsize < 8 else jax.dtypes.canonicalize_dtype(dtype)
    return found


@lru_cache
def _here() -> tuple[Any, Any]:
    """The device on which arrays stay, and what JAX calls their layout there."""
    device = jax.local_devices()[0]
    return device, jax.sharding.SingleDeviceSharding(device)


@lru_cache(maxsize=1024)
def _abstract(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return jax.core.ShapedArray(shape, dtype)


class JaxFeed:
    """A dataset as JAX takes it: each pass is the next epoch. `sharding` is a device or a sharding of batches."""

    def __init__(self, dataset: Streamed, sharding: Any = None) -> None:
        self._dataset, self._sharding = dataset, sharding

    def __iter__(self) -> Converted:
        sharding = self._sharding
        # On the CPU nothing is transferred, so nothing is worth being held ahead.
        kind = Converted if _on_cpu(sharding) else OneAhead
        return kind(iter(self._dataset), lambda value: to_jax(value, sharding))

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

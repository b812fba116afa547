"""Agreement and sums over jax.distributed.

Covers: votes, gathered values, sums of arrays that are whole in every process.
Does not cover: starting the processes, arrays that are sharded over them (keras.distribution).

Each process puts its value on its first device; one compiled sum over a mesh of those devices does the rest, by
whatever XLA uses between them (gloo on CPUs).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class JaxRanks:
    """All processes of jax.distributed."""

    waited_s = 0.0

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()
        first: dict[int, Any] = {}
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        self._mine = first[self.rank]
        mesh = Mesh(np.array([first[rank] for rank in range(self.size)]), ("ranks",))
        self._split = NamedSharding(mesh, PartitionSpec("ranks"))  # type: ignore[no-untyped-call]
        whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self._sum = jax.jit(lambda x: x.sum(0), out_shardings=whole)
        self._stack = jax.jit(lambda x: x, out_shardings=whole)

    def totals(self, *values: float) -> tuple[float, ...]:
        # float32 is what JAX has by default: exact for counts below 16 million, which batches are.
        found = np.asarray(self._over_ranks(self._sum, jnp.asarray(values, jnp.float32)))
        return tuple(float(value) for value in found)

    def any(self, flag: bool) -> bool:
        return self.totals(float(flag))[0] > 0

    def smallest(self, value: int) -> int:
        return min(int(v) for v in self.gather(value))

    def gather(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.asarray(self._over_ranks(self._stack, jnp.asarray(len(text), jnp.int32)))
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(text)] = text
        found = np.asarray(self._over_ranks(self._stack, jnp.asarray(padded)))
        return [json.loads(bytes(row[:n])) for row, n in zip(found, lengths, strict=True)]

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        return [self._over_ranks(self._sum, array * jnp.asarray(share, array.dtype)) for array in arrays]

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        return self.add(arrays, 1.0 if self.rank == 0 else 0.0)

    def _over_ranks(self, function: Any, value: Any) -> Any:
        mine = jax.device_put(value[None], self._mine)
        joined = jax.make_array_from_single_device_arrays((self.size, *value.shape), self._split, [mine])
        return function(joined).addressable_data(0)

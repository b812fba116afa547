"""A Keras model on JAX that `keras.distribution` spreads over the devices of several processes.

Covers: batches of all processes as one batch of all devices, whatever rows each of them has; whole variables on the
host.
Does not cover: that copies begin the same (JAX compares them when they are made), models of which every process has its
own (ranks.py), devices of one process (backends/jax.py).

Every computation on such a model is one program that all processes run together. So the guard steps it as one process
would: the batch is that of all, and each process takes the same decisions because it sees the same batch. Rows are
gathered before the step, so a process that has fewer, or none, changes nothing but who brought which row: no padding
and no masks reach the model. A process that runs out of memory inside of a program cannot call the others out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten, map_leaves
from penstock.guard.keras.parts import Program
from penstock.guard.ranks.agree import Ranks
from penstock.guard.ranks.in_step import NO_ROWS
from penstock.guard.recovery.microbatch import count_rows


class SharedBatches:
    """Turns each process's rows into one batch of all, in the order of processes."""

    def __init__(self, ranks: Ranks) -> None:
        found = keras.distribution.distribution()
        self._mesh: Any = found.device_mesh.backend_mesh
        self._axis = found.batch_dim_name
        self._ranks = ranks
        flat = Mesh(self._mesh.devices.flatten(), ("rows",))
        self._dealt = over(flat, "rows")
        self._gather: dict[Any, Callable[..., Any]] = {}
        self.rows = 0
        """Rows of the last batch that this process brought."""

    def join(self, batch: Any, like: Any) -> Any:
        """The rows of all processes. `like` has the shapes of a batch, for a process that has none left."""
        mine = map_leaves(like, lambda leaf: None if leaf is None else leaf[:0]) if batch is NO_ROWS else batch
        self.rows = 0 if batch is NO_ROWS else count_rows(batch)
        shapes = [None if leaf is None else list(leaf.shape[1:]) for leaf in flatten(mine)[1].values()]
        told = self._ranks.gather([self.rows, shapes])
        if any(other != shapes for _, other in told):
            raise InvalidInput(f"The rows of other processes have other shapes than {shapes}. Pad to a fixed length.")
        return map_leaves(mine, lambda leaf: None if leaf is None else self._joined(leaf, [rows for rows, _ in told]))

    def _joined(self, leaf: Any, counts: list[int]) -> Any:
        local = np.asarray(leaf)
        local = local.astype(jax.dtypes.canonicalize_dtype(local.dtype), copy=False)
        devices = len(self._mesh.devices.flatten()) // self._ranks.size
        most = -(-max(counts) // devices) * devices
        padded = np.concatenate([local, np.zeros((most - len(local), *local.shape[1:]), local.dtype)])
        shape = (most * self._ranks.size, *local.shape[1:])
        dealt = jax.make_array_from_process_local_data(self._dealt, padded, shape)  # type: ignore[no-untyped-call]
        index = np.concatenate([places[:rows] for places, rows in zip(self._places(shape), counts, strict=True)])
        # One program of all processes at a time: on CPUs, several under way can wait for each other's threads for ever.
        dealt.block_until_ready()
        return self._gathered(len(index))(dealt, index).block_until_ready()

    def _places(self, shape: tuple[int, ...]) -> list[np.ndarray]:
        """Where each process's rows are in an array that is dealt out to all devices."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self._ranks.size)]
        cuts: dict[Any, Any] = dict(self._dealt.devices_indices_map(shape))
        for device, (rows, *_) in cuts.items():
            found[device.process_index].append((rows.start or 0, shape[0] if rows.stop is None else rows.stop))
        return [np.concatenate([np.arange(*span) for span in sorted(spans)]) for spans in found]

    def _gathered(self, rows: int) -> Callable[..., Any]:
        """Picks the rows that are there, and deals them out evenly; all devices get all where that is impossible."""
        count = dict(zip(self._mesh.axis_names, self._mesh.devices.shape, strict=True))[self._axis]
        even = rows % count == 0
        if even not in self._gather:
            dealt = over(self._mesh, self._axis) if even else over(self._mesh)
            given = (self._dealt, over(self._dealt.mesh))
            self._gather[even] = jax.jit(lambda x, index: x[index], in_shardings=given, out_shardings=dealt)
        return self._gather[even]


def over(mesh: Any, *axes: str) -> NamedSharding:
    """An array whose first dimensions are dealt out along axes of a mesh; without any, each device has all of it."""
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


class SpreadProgram(Program):
    """A model's loss, whose variables may be in pieces on devices of other processes."""

    def array_of(self, variable: Any) -> np.ndarray:
        """A copy on the host. All processes ask together: the pieces come from all of them."""
        value = variable.value
        if not value.is_fully_replicated:
            value = jax.jit(lambda x: x, out_shardings=over(value.sharding.mesh))(value)
        return np.array(value.addressable_data(0))

"""As many batches in every process, and as large, for a model that Keras spreads over several processes of JAX.

Covers: `model.fit(ds.keras())` under `keras.distribution` over processes: it ends everywhere with the first batch that
is not whole everywhere.
Does not cover: training on such rows too, as `ps.fit` does (guard/keras/backends/jax_spread.py).

Keras makes one array of all processes' batches, which must be equally large, and a process that has one more would wait
for the others for ever. So processes tell each other how many rows they have, before each batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.tree import flatten
from penstock.core.world import WorldError
from penstock.feed.convert import Streamed
from penstock.plan.ranks import has_shard

_FAILED = -1


def over_processes() -> bool:
    """Whether `keras.distribution` is set, on JAX, over devices of several processes."""
    found = keras.distribution.distribution()
    if keras.backend.backend() != "jax" or found is None:
        return False
    return len({device.process_index for device in found.device_mesh.backend_mesh.devices.flat}) > 1


class EqualSteps(Iterator[Any]):
    """One process's batches, as long as all processes have one of the same size."""

    def __init__(self, dataset: Streamed) -> None:
        import jax
        from jax.experimental.multihost_utils import process_allgather

        self._gather: Any = process_allgather
        self._processes = jax.process_count()
        found = keras.distribution.distribution()
        mesh = found.device_mesh.backend_mesh
        self._parts = int(mesh.shape[found.batch_dim_name])
        if self._parts % self._processes and not has_shard(dataset.node):
            raise InvalidInput(
                f"The mesh divides a batch into {self._parts}, among {self._processes} processes: some of them must "
                f"bring the same rows. Say which with .shard(i, n), or use ps.fit, which gathers them."
            )
        self._stream = iter(dataset)

    def __next__(self) -> Any:
        batch, error = self._pull()
        rows = 0 if batch is None else len(next(iter(flatten(batch)[1].values())))
        told = _FAILED if error is not None else rows
        counts = np.asarray(self._gather(np.array([told], np.int32))).ravel().tolist()
        if error is not None:
            raise error
        if _FAILED in counts:
            raise WorldError("Another process could not read its data; its message says why.")
        if min(counts) == max(counts) > 0 and sum(counts) % self._parts == 0:
            return batch
        if rows:
            events.emit("ranks.uneven", "model.fit", dropped=rows, counts=counts)
            warnings.warn(
                f"Processes have {counts} rows for the next batch, and Keras takes equal ones that {self._parts} parts "
                f"divide: the pass ends here. ps.fit trains on every row.",
                stacklevel=2,
            )
        raise StopIteration

    def _pull(self) -> tuple[Any, BaseException | None]:
        try:
            return next(self._stream, None), None
        except Exception as error:  # told to all processes first, raised by the caller then
            return None, error

    def close(self) -> None:
        """End the stream."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

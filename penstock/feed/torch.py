"""Hand-over to PyTorch without a copy.

Covers: tensors over batch buffers, an IterableDataset that also works inside a DataLoader's workers.
Does not cover: dividing a pass (part.py), the training loop (guard/).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.core.errors import MissingExtra, PositionError
from penstock.feed.convert import Converted, Streamed, listed, numeric
from penstock.feed.part import WorkerPart, part_of
from penstock.memory.limits import current_limit, limit
from penstock.memory.meter import Meter

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtra(what="ds.torch()", extra="torch") from error


def to_tensor(value: Any, device: Any = None) -> Any:
    """A leaf as a tensor over the same memory; text, bytes and ragged rows as lists."""
    array = numeric(value)
    if array is None:
        return listed(value, lambda v: to_tensor(v, device))
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        # Torch has no read-only tensors: writing to one over a read-only map would end the process.
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if device is None else tensor.to(device, non_blocking=True)


class TorchFeed(IterableDataset[Any]):
    """A dataset as PyTorch takes it: iterate it, or give it to a `DataLoader(feed, batch_size=None)`.

    Each pass is the next epoch. Inside a loader's workers each reads its own part, once.
    """

    def __init__(self, dataset: Streamed, device: Any = None) -> None:
        self._dataset, self._device = dataset, device
        self._limit: int | None = None
        self._passes = 0
        dataset.epochs.share()

    def __iter__(self) -> Converted:
        info = get_worker_info()
        if info is None:
            return Converted(iter(self._dataset), self._leaf())
        if self._dataset.resuming:
            raise PositionError(
                "A position is resumed by one process: use DataLoader(..., num_workers=0) or iterate ds.torch(); "
                "penstock reads and decodes in parallel by itself."
            )
        self._share_memory(info.num_workers)
        # The seed without the worker's number is one for all workers of a loader; a pass of its own each time.
        ticket = hash((info.seed - info.id, self._passes))
        self._passes += 1
        worker = WorkerPart(info.id, info.num_workers, self._dataset.epochs.take(ticket, info.id))
        mine = type(self._dataset)(part_of(self._dataset.node, worker))
        return Converted(iter(mine.at_epoch(worker.epoch)), self._leaf())

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def _leaf(self) -> Callable[[Any], Any]:
        device = self._device
        return lambda value: to_tensor(value, device)

    def _share_memory(self, workers: int) -> None:
        """One limit for all: what the parent leaves free is divided among the workers, once in each."""
        if self._passes:
            return
        whole = min(current_limit().nbytes, self._limit or 1 << 62)
        parent = Meter(os.getppid()).read().by_process
        used = parent[0].nbytes if parent else 0
        limit(max(whole // (4 * workers), (whole - used) // workers))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_limit": current_limit().nbytes}

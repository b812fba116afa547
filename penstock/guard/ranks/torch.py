"""Agreement and sums over torch.distributed.

Covers: votes, gathered values, gradients added up in place.
Does not cover: starting the process group (the launcher, or distribute/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

_UNDER_WAY = 8
"""Sums under way at a time: the next tensor is prepared while earlier ones travel."""
_JOINED_NBYTES = 1 << 20
"""Smaller tensors travel together, up to so many bytes."""


class TorchRanks:
    """The default process group. With NCCL, small values travel over the GPU."""

    waited_s = 0.0

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = "cuda" if dist.get_backend() == "nccl" else "cpu"

    def totals(self, *values: float) -> tuple[float, ...]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return tuple(tensor.tolist())

    def any(self, flag: bool) -> bool:
        return self.totals(float(flag))[0] > 0

    def smallest(self, value: int) -> int:
        tensor = torch.tensor(value, device=self._device)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return int(tensor.item())

    def gather(self, value: Any) -> list[Any]:
        # JSON and not pickle: what comes from another machine is data, never code.
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self._device)
        lengths = [torch.zeros((), dtype=torch.int64, device=self._device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor(mine.numel(), device=self._device))
        most = max(int(length) for length in lengths)
        padded = torch.zeros(most, dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        texts = zip(found, lengths, strict=True)
        return [json.loads(bytes(text[: int(length)].cpu().numpy())) for text, length in texts]

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        waiting: list[tuple[Any, Any, list[Any]]] = []
        with torch.no_grad():
            for group in groups(arrays):
                joined = group[0] if len(group) == 1 else torch.cat([array.reshape(-1) for array in group])
                if share != 1.0:
                    joined.mul_(share)
                waiting.append((dist.all_reduce(joined, async_op=True), joined, group))
                if len(waiting) > _UNDER_WAY:
                    _take_apart(*waiting.pop(0))
            for one in waiting:
                _take_apart(*one)
        return list(arrays)

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            for array in arrays:
                dist.broadcast(array, 0)
        return list(arrays)


def groups(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """The arrays in their order, small ones of a kind together: each sum costs a round over the network."""
    group: list[Any] = []
    nbytes = 0
    for array in arrays:
        alone = array.is_sparse or array.nbytes >= _JOINED_NBYTES
        other = bool(group) and (group[0].dtype, group[0].device) != (array.dtype, array.device)
        if group and (alone or other or nbytes + array.nbytes > _JOINED_NBYTES):
            yield group
            group, nbytes = [], 0
        if alone:
            yield [array]
            continue
        group.append(array)
        nbytes += array.nbytes
    if group:
        yield group


def _take_apart(work: Any, joined: Any, group: list[Any]) -> None:
    work.wait()
    if len(group) > 1:
        parts = joined.split([array.numel() for array in group])
        torch._foreach_copy_(group, [part.view(array.shape) for part, array in zip(parts, group, strict=True)])

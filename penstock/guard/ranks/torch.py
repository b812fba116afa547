"""Agreement and sums over torch.distributed.

Covers: votes, gathered values, gradients added up in place.
Does not cover: starting the process group (the launcher, or distribute/).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

_UNDER_WAY = 8
"""Sums under way at a time: the next tensor is prepared while earlier ones travel."""
_JOINED_NBYTES = 1 << 20
"""Smaller tensors travel together, up to so many bytes."""
_LET_GO_S = 0.5


class TorchRanks:
    """The default process group. With NCCL, small values travel over the GPU."""

    waited_s = 0.0

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = "cuda" if dist.get_backend() == "nccl" else "cpu"

    def totals(self, *values: float) -> tuple[float, ...]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._sum(tensor)
        return tuple(tensor.tolist())

    def _sum(self, tensor: Any, how: Any = dist.ReduceOp.SUM) -> None:
        held = InHand([tensor])
        dist.all_reduce(tensor, how)
        held.wait()

    def any(self, flag: bool) -> bool:
        return self.totals(float(flag))[0] > 0

    def smallest(self, value: int) -> int:
        tensor = torch.tensor(value, device=self._device)
        self._sum(tensor, dist.ReduceOp.MIN)
        return int(tensor.item())

    def gather(self, value: Any) -> list[Any]:
        # JSON and not pickle: what comes from another machine is data, never code.
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self._device)
        lengths = [torch.zeros((), dtype=torch.int64, device=self._device) for _ in range(self.size)]
        length = torch.tensor(mine.numel(), device=self._device)
        held = InHand([*lengths, length])
        dist.all_gather(lengths, length)
        held.wait()
        most = max(int(length) for length in lengths)
        padded = torch.zeros(most, dtype=torch.uint8, device=self._device)
        padded[: mine.numel()] = mine
        found = [torch.empty_like(padded) for _ in range(self.size)]
        held = InHand([*found, padded])
        dist.all_gather(found, padded)
        held.wait()
        texts = zip(found, lengths, strict=True)
        return [json.loads(bytes(text[: int(length)].cpu().numpy())) for text, length in texts]

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        waiting: list[tuple[Any, Any, list[Any], InHand]] = []
        with torch.no_grad():
            for group in groups(arrays):
                joined = group[0] if len(group) == 1 else torch.cat([array.reshape(-1) for array in group])
                if share != 1.0:
                    joined.mul_(share)
                held = InHand([joined])
                waiting.append((dist.all_reduce(joined, async_op=True), joined, group, held))
                if len(waiting) > _UNDER_WAY:
                    _take_first_apart(waiting)
            while waiting:
                _take_first_apart(waiting)
        return list(arrays)

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            for group in groups(arrays):
                joined = group[0] if len(group) == 1 else torch.cat([array.reshape(-1) for array in group])
                held = InHand([joined])
                dist.broadcast(joined, 0)
                held.wait()
                _put_back(joined, group)
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


class InHand:
    """Tensors that gloo's threads have in hand, until they let go of them.

    Whoever drops a sum last drops its tensors, for which it needs the interpreter lock. A thread of gloo that still
    waits for the lock while the interpreter ends aborts the process: a rank would die of SIGABRT when its work is done.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._before = [(tensor, tensor._use_count()) for tensor in tensors if tensor.device.type == "cpu"]

    def wait(self) -> None:
        """Give the threads their turn; a moment at the most, since this is never worth a stuck rank."""
        end_s = time.monotonic() + _LET_GO_S
        while any(tensor._use_count() > count for tensor, count in self._before) and time.monotonic() < end_s:
            time.sleep(0)


def _take_first_apart(waiting: list[tuple[Any, Any, list[Any], InHand]]) -> None:
    work, joined, group, held = waiting.pop(0)
    work.wait()
    del work
    held.wait()
    _put_back(joined, group)


def _put_back(joined: Any, group: list[Any]) -> None:
    """Values that travelled together go where they came from."""
    if len(group) > 1:
        parts = joined.split([array.numel() for array in group])
        torch._foreach_copy_(group, [part.view(array.shape) for part, array in zip(parts, group, strict=True)])

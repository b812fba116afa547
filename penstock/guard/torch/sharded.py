"""Steps of a torch model whose parameters are divided among the ranks (FSDP2, `fully_shard`).

Covers: which sharded models can be stepped; as many parts on every rank; the mean over ranks turned into a sum.
Does not cover: parts, weights, the optimizer (parts.py, protect.py), models that are divided otherwise (refused).

A sharded model talks to the other ranks in every forward and backward pass: it gathers its weights and adds up its
gradients there. So all ranks take the same number of passes, and one that has fewer parts takes the others over a row
that counts for nothing. A rank that runs out of memory inside a pass leaves the others waiting in it, and no vote can
call them out. So on CPUs small parts are measured before the first step, and the ranks agree on what fits on each.
Where one runs out of memory all the same it says which size to try and ends, and its launcher starts all ranks again
from their checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.tree import map_leaves
from penstock.guard.ranks.agree import OneRank, Ranks
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import memory_is_short
from penstock.guard.recovery.microbatch import Part
from penstock.guard.torch.parts import TorchOptions, TorchStepper, to_torch, total_of, world_size
from penstock.guard.torch.state import buffers_of


def make_stepper(model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: TorchOptions) -> TorchStepper:
    """The stepper for a model as it is divided, or not."""
    return (ShardedStepper if check_sharded(model, optimizer) else TorchStepper)(model, optimizer, options)


def check_sharded(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the model is sharded over all ranks by `fully_shard`; refuses other ways of dividing one."""
    params = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    divided = [hasattr(p, "device_mesh") for p in params]
    if not any(divided):
        return False
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None or not isinstance(model, kind) or not all(divided):
        raise InvalidInput(
            "Some parameters are divided over ranks (tensor parallel, or fully_shard of some blocks only). The guard "
            "steps models of which fully_shard(model) was called for the whole, after its blocks."
        )
    if any(p.device_mesh.ndim != 1 or p.device_mesh.size() != world_size() for p in params):
        raise InvalidInput(
            "The guard steps models that fully_shard divides over all ranks, on a mesh of one dimension."
        )
    return True


class ShardedStepper(TorchStepper):
    """Takes steps in which every rank makes the same passes."""

    waits_inside = True
    _ranks: Ranks = OneRank()
    _example: Any = None

    def begin_together(self, ranks: Ranks) -> None:
        """Parameters are each rank's own part already; buffers are rank 0's."""
        self._ranks = ranks
        if ranks.size > 1:
            ranks.from_first(buffers_of(self.model))

    def begin(self, parts: Sequence[Part]) -> None:
        """Besides, agree on the number of passes, and take those for which this rank has no rows."""
        super().begin(parts)
        if self._ranks.size == 1:
            return
        if parts:
            self._example = map_leaves(parts[0].data, _first_row)
        total, without = self._ranks.totals(self.weight or 0.0, self._example is None)
        passes = -self._ranks.smallest(-len(parts))
        if without:
            raise InvalidInput("A rank has had no row yet, so it cannot take part in a pass of a sharded model.")
        share = 1.0 if self.weight is None or not total else self.weight / total
        # fully_shard takes the mean over ranks, and the step needs the sum of each rank's share.
        self._weights = {start: weight * share * self._ranks.size for start, weight in self._weights.items()}
        for _ in range(passes - len(parts)):
            self._pass_without_rows()
        if passes > len(parts):
            self._buffers.restore()

    def part(self, part: Part) -> None:
        """As for every model; but a lack of memory is final here."""
        try:
            super().part(part)
        except BaseException as error:
            self._end_if_out_of_memory(error, part.rows)
            raise

    def combine(self, ranks: Ranks, share: float) -> None:
        """Gradients are added up already; losses and buffers are not."""
        self._losses = ranks.add([total_of(self._losses)], 1.0 / ranks.size)
        ranks.from_first([buffer for buffer in buffers_of(self.model) if buffer.is_floating_point()])

    def _pass_without_rows(self) -> None:
        try:
            (self._loss_of(to_torch(self._example, self.device)) * 0.0).backward()  # type: ignore[no-untyped-call]
        except BaseException as error:
            self._end_if_out_of_memory(error, 1)
            raise

    def _end_if_out_of_memory(self, error: BaseException, rows: int) -> None:
        found = classify(error, memory_is_short=memory_is_short)
        if found is None:
            return
        smaller = max(1, rows // 2)
        raise OutOfMemory(
            f"Rank {self._ranks.rank} ran out of memory in the {self.phase} pass of {rows} rows ({found.text}). The "
            f"other ranks of a sharded model wait inside of the same pass, so it cannot be taken again here: start all "
            f"ranks again from their checkpoint with Guard(..., micro_batch={smaller}), or add ranks.",
            phase=self.phase,
            micro=rows,
        ) from None


def _first_row(value: Any) -> Any:
    return None if value is None else value[:1].copy() if hasattr(value, "copy") else value[:1].clone()

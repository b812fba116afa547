"""Rematerialisation for PyTorch: activations of repeated blocks are computed again instead of kept.

Covers: finding a module's repeated blocks and running them under torch's checkpoint.
Does not cover: when to do it (guard/recovery/ladder.py).

The blocks are the children of every outermost Sequential or ModuleList: that is how deep models are written, and a
block boundary is where little has to be kept. Random numbers are replayed, so dropout is the same in both passes, and
batch normalisation counts a batch into its running statistics in the first pass alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

_MARK = "_penstock_remat"
_ROWS_OF_BLOCKS = (torch.nn.Sequential, torch.nn.ModuleList)


def rematerialise(model: torch.nn.Module) -> int:
    """Switch recomputation on for the model's blocks; returns how many there are."""
    blocks = [block for block in find_blocks(model) if not getattr(block, _MARK, False)]
    for block in blocks:
        _wrap(block)
    return len(blocks)


def find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Children of the outermost Sequentials and ModuleLists that hold parameters; without any, direct children."""
    blocks: list[torch.nn.Module] = []

    def walk(module: torch.nn.Module) -> None:
        for child in module.children():
            if isinstance(module, _ROWS_OF_BLOCKS) and not (isinstance(child, _ROWS_OF_BLOCKS) and len(child) <= 1):
                blocks.append(child)
            else:
                walk(child)

    walk(model)
    found = blocks or list(model.children())
    return [block for block in found if any(p.requires_grad for p in block.parameters())]


def _wrap(block: torch.nn.Module) -> None:
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        return checkpoint(original, *args, use_reentrant=False, context_fn=passes, **kwargs)

    def passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(block)

    block.forward = forward
    setattr(block, _MARK, True)


@contextmanager
def _statistics_kept(block: torch.nn.Module) -> Iterator[None]:
    """While a block is computed again its running statistics stay: the batch has been counted.

    A share of 0 leaves them as they are. They cannot be taken away: autograd counts the tensors that a pass saves.
    """
    layers = [layer for layer in block.modules() if isinstance(layer, _BatchNorm) and layer.training]
    before = [(layer, layer.momentum, _count(layer)) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum, count in before:
            layer.momentum = momentum
            if count is not None and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.copy_(count)


def _count(layer: _BatchNorm) -> torch.Tensor | None:
    return None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone()

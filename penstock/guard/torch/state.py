"""Putting PyTorch state back to what it was.

Covers: random generators, buffers, gradient scaler, and parameters with their optimizer state.
Does not cover: when to put it back (guard/frameworks/torch.py).

`optimizer.step()` can be torn by an allocation that fails halfway: measured, 18 of 44 failures of AdamW's foreach
path left some parameters stepped and others not; fused kernels, which allocate nothing, none of 22. So unless the
optimizer is fused, parameters and state are copied first, into buffers that are made once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch


class Generators:
    """The state of torch's global random generators."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cuda = [device for device in devices if device.type == "cuda"]
        self._cpu_state = torch.empty(0, dtype=torch.uint8)
        self._cuda_states: list[torch.Tensor] = []

    def save(self) -> None:
        """Remember where the generators are."""
        self._cpu_state = torch.get_rng_state()
        self._cuda_states = [torch.cuda.get_rng_state(device) for device in self._cuda]

    def restore(self) -> None:
        """Put the generators back, so that a repeated step draws the same numbers."""
        if not len(self._cpu_state):  # nothing was begun yet
            return
        torch.set_rng_state(self._cpu_state)
        for device, state in zip(self._cuda, self._cuda_states, strict=True):
            torch.cuda.set_rng_state(state, device)


class Copies:
    """Copies of some tensors, in buffers that are allocated once and used again."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._buffers: list[torch.Tensor] = []

    def save(self, tensors: list[torch.Tensor]) -> None:
        """Copy the tensors' values."""
        same = len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        if not same:
            # The old buffers go first: old and new together would double what the snapshot costs.
            self._tensors, self._buffers = [], []
            self._buffers = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
            self._tensors = tensors
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, tensors)

    def restore(self) -> None:
        """Write the copied values back."""
        if self._tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors, self._buffers)


def buffers_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The model's buffers, each once. `model.buffers()` names all modules on the way: three times the time."""
    modules: list[torch.nn.Module | None] = [model]
    seen: set[torch.nn.Module] = set()
    found: list[torch.Tensor | None] = []
    while modules:
        module = modules.pop()
        if module is None or module in seen:
            continue
        seen.add(module)
        if module._buffers:
            found += module._buffers.values()
        if module._modules:
            modules += module._modules.values()
    return list({id(buffer): buffer for buffer in found if buffer is not None}.values())


class OptimizerState:
    """What one `optimizer.step()` may change, to be put back if the step fails."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, ranks: int = 1) -> None:
        # With other ranks a step that was good here is undone when it failed elsewhere, so fused ones are copied too.
        self._optimizer, self._always = optimizer, ranks > 1
        self._copies = Copies()
        self._scalars: list[tuple[dict[str, Any], str, Any]] = []
        self._had_state: list[torch.Tensor] = []
        self._saved = False

    def save(self) -> None:
        """Copy parameters and state; for a fused optimizer of a single process only the step counters."""
        optimizer = self._optimizer
        tensors: list[torch.Tensor] = []
        self._scalars = []
        for group in optimizer.param_groups:
            whole = self._always or not group.get("fused")
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = optimizer.state.get(param, {})
                if not whole and isinstance(counter := state.get("step"), torch.Tensor):
                    tensors.append(counter)  # that of torch's fused optimizers; nothing else of them can tear
                    continue
                if whole:
                    tensors.append(param)
                for name, value in state.items():
                    if not isinstance(value, torch.Tensor):
                        self._scalars.append((state, name, value))
                    elif whole or value.numel() <= 1:
                        tensors += plain_tensors(value)
        self._had_state = [param for param, state in optimizer.state.items() if state]
        self._copies.save(tensors)
        self._saved = True

    def restore(self) -> None:
        """Put parameters and state back; state that the failed step began to create is removed."""
        if not self._saved:
            return
        had_state = set(self._had_state)
        for param in [param for param in self._optimizer.state if param not in had_state]:
            del self._optimizer.state[param]
        for state, name, value in self._scalars:
            state[name] = value
        self._copies.restore()
        self._saved = False

    def forget(self) -> None:
        """The step was good: there is nothing to put back any more."""
        self._saved = False


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that this one is made of: quantised optimizer state is codes and scales behind one face."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    return [plain for name in flatten()[0] for plain in plain_tensors(getattr(tensor, name))]


class Scaler:
    """The dynamic loss scale of a GradScaler, if there is one."""

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self.scaler = scaler
        self._saved: dict[str, Any] = {}

    def save(self) -> None:
        """Remember scale and growth counter."""
        if self.scaler is not None:
            self._saved = self.scaler.state_dict()

    def restore(self) -> None:
        """Put them back and forget that gradients were unscaled."""
        if self.scaler is not None and self._saved:
            self.scaler.load_state_dict(self._saved)
            # Only update() clears this, and update() would also move the scale.
            self.scaler._per_optimizer_states.clear()

    def __bool__(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

"""torch optimizers with little state.

Covers: Adafactor, torchao's 8-bit AdamW, and AdamW whose state stays in host memory.
Does not cover: choosing one (guard/optimizer_memory.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adamw import adamw

from penstock.core.errors import InvalidInput
from penstock.guard.torch.state import plain_tensors


def make(
    model: torch.nn.Module, memory: str | None, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer for all parameters that train."""
    params = [param for param in model.parameters() if param.requires_grad]
    options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if memory == "factored":
        return torch.optim.Adafactor(params, **options)
    if memory == "8bit":
        try:
            from torchao.optim import AdamW8bit
        except ImportError as error:
            raise InvalidInput("8-bit AdamW comes from torchao, which is not here. Run: pip install torchao") from error
        found: torch.optim.Optimizer = AdamW8bit(params, **options)
        return found
    if memory == "offload":
        return OffloadedAdamW(params, **options)
    return torch.optim.AdamW(params, fused=True, **options)


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW whose moments live in host memory, and are stepped there, one parameter at a time.

    On the device there is never more than the weights and their gradients. For parameters that are in host memory
    already it is AdamW with a for-loop.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        if closure is not None:
            raise InvalidInput("This optimizer takes no closure.")
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, group)

    def _step_one(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros(param.shape, dtype=param.dtype, device="cpu")
        here, grad = param.detach().to("cpu"), param.grad.to("cpu")  # type: ignore[union-attr]
        beta1, beta2 = group["betas"]
        adamw(
            [here],
            [grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if here.data_ptr() != param.data_ptr():
            param.copy_(here)


def state_nbytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's tensors, single numbers left out."""
    found = 0
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                found += sum(plain.numel() * plain.element_size() for plain in plain_tensors(value))
    return found

"""torch modules.

Covers: predicting, training one step at a time, kernels, copies.
Does not cover: graph surgery (trace.py), quantization (quantize.py).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.compress.data import Array, Inputs, Outputs, arrays, bare
from penstock.compress.framework import Goals, Loss, PrunableWeight, Trainer
from penstock.compress.thin.channels import Mask, Trace
from penstock.compress.torch.trace import is_exported, rebuild_torch, torch_arrays, trace_torch
from penstock.core.errors import InvalidInput


class TorchModels:
    """`Framework` for torch."""

    name = "torch"

    def predict(self, model: Any, x: Inputs) -> Outputs:
        """Outputs in inference mode; the module's mode is put back afterwards."""
        import torch

        was_training = getattr(model, "training", False)
        set_mode(model, False)
        try:
            with torch.inference_mode():
                made = call(model, x)
        finally:
            set_mode(model, was_training)
        return bare({name: np.asarray(part.cpu().numpy()) for name, part in named(model, made).items()})

    def endings(self, model: Any) -> dict[str, str]:
        """The last layer of a Sequential; empty where only running tells."""
        import torch

        if isinstance(model, torch.nn.Sequential) and len(model):
            name = type(model[-1]).__name__.lower()
            return {"": name if name in ("softmax", "sigmoid") else "linear"}
        return {}

    def trainer(self, model: Any, goals: Goals, learning_rate: float) -> Trainer:
        return _TorchTrainer(model, goals, learning_rate)

    def kernels(self, model: Any) -> list[PrunableWeight]:
        """Every trainable weight of two axes or more, except embeddings."""
        import torch

        tables = {id(m.weight) for m in model.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))}
        return [
            PrunableWeight(name, 1, tuple(weight.shape), partial(_numpy, weight), partial(_fill, weight))
            for name, weight in model.named_parameters()
            if weight.ndim >= 2 and weight.requires_grad and id(weight) not in tables
        ]

    def parameters(self, model: Any) -> int:
        return sum(int(weight.numel()) for weight in model.parameters())

    def copy(self, model: Any) -> Any:
        return copy.deepcopy(model)

    def trace(self, model: Any, example: Inputs | None) -> Trace:
        if example is None:
            raise InvalidInput("Resizing a torch module needs data (or example=): one batch of its inputs.")
        return trace_torch(model, example)

    def arrays(self, model: Any) -> dict[Hashable, Array]:
        return torch_arrays(model)

    def rebuild(self, model: Any, trace: Trace, keep: Mask, *, copy_weights: bool) -> Any:
        return rebuild_torch(model, trace, keep, copy_weights=copy_weights)


def set_mode(model: Any, training: bool) -> None:
    """Switch between training and inference; an exported program has only the mode it was exported in."""
    if not is_exported(model):
        model.train(training)


def call(model: Any, x: Inputs) -> Any:
    """Run a module on NumPy inputs, on the device of its weights."""
    import torch

    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def tensor(part: Array) -> Any:
        return torch.from_numpy(np.ascontiguousarray(part)).to(device)

    if isinstance(x, dict):
        return model(**{name: tensor(part) for name, part in x.items()})
    return model(*(tensor(part) for part in x)) if isinstance(x, tuple) else model(tensor(x))


def named(model: Any, made: Any) -> dict[str, Any]:
    """What a module returned, by name: keys of a dict, numbers for a tuple, '' for one tensor."""
    import torch

    if isinstance(made, torch.Tensor):
        return {"": made}
    if isinstance(made, Mapping):
        found = {str(name): part for name, part in made.items()}
    elif isinstance(made, (tuple, list)):
        found = {str(i): part for i, part in enumerate(made)}
    else:
        found = {}
    if not found or not all(isinstance(part, torch.Tensor) for part in found.values()):
        raise InvalidInput(
            f"{type(model).__name__} returns {type(made).__name__}; shrinking needs a tensor, or several of them."
        )
    return found if len(found) > 1 else {"": next(iter(found.values()))}


def _numpy(weight: Any) -> Array:
    return np.array(weight.detach().cpu().numpy())


def _fill(weight: Any, values: Array) -> None:
    import torch

    with torch.no_grad():
        weight.copy_(torch.from_numpy(np.ascontiguousarray(values)))


class _TorchTrainer:
    """Adam on the module itself."""

    def __init__(self, model: Any, goals: Goals, learning_rate: float) -> None:
        import torch

        self.model, self.goals = model, goals
        self.optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=learning_rate)

    def step(self, x: Inputs, y: Outputs, soft: Outputs | None) -> float:
        set_mode(self.model, True)
        made = named(self.model, call(self.model, x))
        known, taught = arrays(y), {} if soft is None else arrays(soft)
        losses = [
            loss.weight * torch_loss(loss, made[name].float(), _like(known[name], made[name]),
                                     _like(taught[name], made[name]).float() if taught else None)
            for name, loss in self.goals.items()
        ]  # fmt: skip
        total = sum(losses[1:], start=losses[0])
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self.optimizer.step()
        return float(total.detach())


def _like(values: Array, tensor: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(tensor.device)


def torch_loss(loss: Loss, made: Any, target: Any, taught: Any) -> Any:
    """The same loss as on Keras: labels and teacher weighed by alpha."""
    import torch
    from torch.nn import functional as F

    if loss.task == "regress":
        hard = F.mse_loss(made, target.reshape(made.shape))
        return hard if taught is None else (1 - loss.alpha) * hard + loss.alpha * F.mse_loss(made, taught)
    if loss.output == "probabilities":
        safe = made.clamp(1e-7, 1 - 1e-7)
        made = safe.log() if made.shape[-1] != 1 else torch.logit(safe)
    if made.shape[-1] == 1:
        made = torch.cat([torch.zeros_like(made), made], dim=-1)
    logs = torch.log_softmax(made, dim=-1)
    hard = F.nll_loss(logs.reshape(-1, logs.shape[-1]), target.reshape(-1).long())
    if taught is None:
        return hard
    if taught.shape[-1] == 1:
        taught = torch.cat([torch.zeros_like(taught), taught], dim=-1)
    heat = loss.temperature
    said = torch.log_softmax(taught / heat, dim=-1)
    soft = (said.exp() * (said - torch.log_softmax(made / heat, dim=-1))).sum(dim=-1).mean()
    return (1 - loss.alpha) * hard + loss.alpha * heat**2 * soft

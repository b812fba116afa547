"""Reading the channels of a torch module and cutting it to fewer of them.

Covers: modules that torch.fx can trace, with one or several inputs and outputs, made of standard layers.
Does not cover: data-dependent Python in forward (refused by name), what follows channels (walk.py).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.compress.data import Inputs, arrays
from penstock.compress.thin.channels import Mask, Slot, Trace, cut
from penstock.compress.torch.walk import GraphWalk
from penstock.core.errors import InvalidInput


def trace_torch(model: Any, example: Inputs) -> Trace:
    """Number the channels of a torch module. `example` is one batch of inputs, from which shapes are read."""
    import torch
    from torch.fx.passes.shape_prop import ShapeProp

    if is_exported(model):
        raise InvalidInput(
            "An exported program (.pt2) holds operations, not layers, so its widths cannot change. "
            "Give the module that it was exported from (module.py:build)."
        )
    module = copy.deepcopy(model).eval()
    try:
        graph = torch.fx.symbolic_trace(module)
        given = {name: torch.as_tensor(part) for name, part in arrays(example).items()}
        names = [node.target for node in graph.graph.nodes if node.op == "placeholder"]
        if isinstance(example, dict):
            given = {name: given[name] for name in names if name in given}
        with torch.no_grad():
            ShapeProp(graph).propagate(*given.values())
    except Exception as error:
        raise InvalidInput(
            f"{type(model).__name__} cannot be traced, so its widths cannot change: {type(error).__name__}: {error}. "
            "Write forward without decisions on tensor values, or pass a smaller module of your own to distill()."
        ) from error
    return GraphWalk(graph).run()


def is_exported(model: Any) -> bool:
    """Whether a module came out of torch.export: those raise on train() and eval(), ones from torch.fx do not."""
    import torch

    plain = getattr(getattr(model, "train", None), "__func__", None) is torch.nn.Module.train
    return isinstance(model, torch.fx.GraphModule) and not plain


def torch_arrays(model: Any) -> dict[Hashable, Any]:
    """Every stored tensor of a module, by (module path, name)."""
    return {tuple(name.rpartition(".")[::2]): t.detach().cpu().numpy() for name, t in model.state_dict().items()}


def rebuild_torch(model: Any, trace: Trace, keep: Mask, *, copy_weights: bool = True) -> Any:
    """A copy of the module with the kept channels only, with their weights or freshly initialised."""
    import torch

    small = copy.deepcopy(model)
    for path, attribute, ids in trace.sizes:
        count = int(keep[ids].sum())
        setattr(small.get_submodule(str(path)), attribute, (count,) if attribute == "normalized_shape" else count)
    slots: dict[Hashable, list[Slot]] = {}
    for slot in trace.slots:
        slots.setdefault(slot.array, []).append(slot)
    with torch.no_grad():
        for key, found in slots.items():
            path, name = _split(key)
            owner = small.get_submodule(path)
            old = getattr(owner, name)
            new = torch.from_numpy(np.ascontiguousarray(cut(old.detach().cpu().numpy(), found, keep))).to(old.device)
            kept = isinstance(old, torch.nn.Parameter)
            setattr(owner, name, torch.nn.Parameter(new, old.requires_grad) if kept else new)
    if not copy_weights:
        _start_afresh(small)
    return small


def _start_afresh(model: Any) -> None:
    """New weights: from each layer's own rule; a parameter of no layer is drawn with the spread that it had."""
    import torch

    for part in model.modules():
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if reset is not None:
            reset()
        elif not type(part).__module__.startswith("torch."):
            for weight in part.parameters(recurse=False):
                torch.nn.init.normal_(weight, std=float(weight.detach().float().std(unbiased=False)))


def _split(key: Hashable) -> tuple[str, str]:
    path, name = key if isinstance(key, tuple) else ("", key)
    return str(path), str(name)

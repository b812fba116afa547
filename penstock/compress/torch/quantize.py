"""Smaller numbers for torch weights, in files that plain torch opens.

Covers: weight-only storage (float16, float8, int8, int4) for any layer but recurrent ones, dynamic and calibrated int8,
fine-tuning under simulated quantization for the weight-only modes and calibrated int8.
Does not cover: GPU kernels, writing files (files.py).

Weight-only storage is written with plain tensor operations (convert, multiply, shift), so a saved .pt2 needs nothing
but torch: programs made by torchao's pt2e flow (0.18) cannot be loaded without torchao, and were larger than float32.
"""

from __future__ import annotations

import copy
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrize

from penstock.compress.data import CALIBRATION_ROWS, Batches, Head, arrays, first
from penstock.compress.torch.framework import TorchModels, call
from penstock.compress.torch.trace import is_exported
from penstock.compress.train import Fit, fine_tune
from penstock.core.errors import InvalidInput

WEIGHT_ONLY = ("float16", "float8", "int8", "int4")
MODES = (*WEIGHT_ONLY, "int8-dynamic", "int8-static")
GROUP = 32
"""Neighbouring int4 weights that share a scale: one float16 for 32 weights adds half a bit to each."""


def quantize_torch(
    model: Any, mode: str, *, data: Batches | None = None, fit: Fit | None = None
) -> tuple[Any, list[str]]:
    """A quantized copy of a torch module, and what to know about it. `fit` fine-tunes on `data` beforehand."""
    if mode not in MODES:
        raise InvalidInput(f"torch has no quantization {mode!r} here; there are {', '.join(MODES)}.")
    if fit is not None and data is None:
        raise InvalidInput("Fine-tuning under simulated quantization needs data: pass calibration (or data).")
    if mode in WEIGHT_ONLY:
        return _weight_only(model, mode, data, fit)
    if is_exported(model):
        raise InvalidInput(f"{mode} replaces layers, which an exported program (.pt2) no longer has. Use 'int8'.")
    if mode == "int8-dynamic":
        if fit is not None:
            raise InvalidInput("torch simulates int8-static and weight-only modes while training, not int8-dynamic.")
        return _dynamic(model), ["int8-dynamic: torch has it for Linear and recurrent layers; others stay float32."]
    if data is None:
        raise InvalidInput("int8-static measures activations first: pass calibration (or data).")
    return _static(model, data, fit), ["int8-static: saved as TorchScript (.pt), run by torch.jit.load."]


class _Stored(torch.nn.Module):
    """One number per weight and one scale per output channel."""

    def __init__(self, dtype: torch.dtype, top: float | None) -> None:
        super().__init__()
        self.dtype, self.top = dtype, top

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.top is None:
            return weight.to(self.dtype), torch.ones((), dtype=torch.float32)
        scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).clamp_min(1e-12) / self.top
        levels = weight / scale
        return (levels.round() if self.dtype == torch.int8 else levels).to(self.dtype), scale

    def forward(self, levels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return levels.to(torch.float32) * scale


class _Packed(torch.nn.Module):
    """Two 4-bit weights in a byte, a scale for every GROUP of a row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.columns = shape, int(np.prod(shape[1:]))

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.nn.functional.pad(weight.reshape(self.shape[0], -1), (0, -self.columns % GROUP))
        groups = wide.reshape(self.shape[0], -1, GROUP)
        scale = (groups.abs().amax(2, keepdim=True).clamp_min(1e-7) / 7).to(torch.float16)
        levels = ((groups / scale.float()).round().clamp(-8, 7) + 8).to(torch.uint8).reshape(self.shape[0], -1, 2)
        return levels[..., 0] | (levels[..., 1] << 4), scale

    def forward(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        levels = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(self.shape[0], -1, GROUP)
        wide = ((levels.to(torch.float32) - 8) * scale.to(torch.float32)).reshape(self.shape[0], -1)
        return wide[:, : self.columns].reshape(self.shape)


class _Simulated(torch.nn.Module):
    """A weight as storage would give it back; gradients pass as if it were not rounded."""

    def __init__(self, storage: torch.nn.Module) -> None:
        super().__init__()
        self.storage = storage

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        inverse: Any = self.storage.right_inverse
        rounded: torch.Tensor = self.storage(*inverse(weight.detach()))
        return weight + (rounded - weight).detach()


def _storage(mode: str, weight: torch.Tensor) -> torch.nn.Module:
    if mode == "int4":
        return _Packed(tuple(weight.shape))
    kinds = {"int8": (torch.int8, 127.0), "float8": (torch.float8_e4m3fn, 448.0), "float16": (torch.float16, None)}
    return _Stored(*kinds[mode])


def _weight_only(model: Any, mode: str, data: Batches | None, fit: Fit | None) -> tuple[Any, list[str]]:
    twin = copy.deepcopy(model)
    recurrent = [name for name, part in twin.named_modules() if isinstance(part, torch.nn.RNNBase)]
    found = [
        (part, name)
        for part in list(twin.modules())
        for name, weight in list(part.named_parameters(recurse=False))
        if weight.ndim >= 2 and weight.is_floating_point() and not isinstance(part, torch.nn.RNNBase)
    ]
    instead = (
        " Recurrent layers hand their weights to one fused call: use 'int8-dynamic' for them." if recurrent else ""
    )
    if not found:
        raise InvalidInput(f"{type(model).__name__} has no weight of two axes or more to store as {mode}.{instead}")
    notes = [f"{mode}: weights are stored so and widened to float32 when used."]
    if recurrent:
        notes.append(f"{mode}: {', '.join(recurrent)} stay float32.{instead}")
    if fit is not None and data is not None:
        for part, name in found:
            parametrize.register_parametrization(part, name, _Simulated(_storage(mode, getattr(part, name))))
        fine_tune(TorchModels(), twin, data, fit)
        for part, name in found:
            parametrize.remove_parametrizations(part, name, leave_parametrized=False)
        notes.append(f"Fine-tuned for {fit.epochs} epochs under simulated {mode}.")
    for part, name in found:
        weight = getattr(part, name)
        weight.requires_grad_(False)
        # unsafe: torch would check that dtypes stay, and changing them is the point.
        parametrize.register_parametrization(part, name, _storage(mode, weight), unsafe=True)
    return twin, notes


@contextmanager
def _quiet() -> Iterator[None]:
    # torch.ao marks its eager API as moving to torchao, whose replacement does not save without torchao yet.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _engine() -> str:
    supported = torch.backends.quantized.supported_engines
    wanted = ("x86", "fbgemm") if platform.machine() in ("x86_64", "AMD64") else ("qnnpack",)
    for name in wanted:
        if name in supported:
            return name
    raise InvalidInput(f"This build of torch has no int8 engine for {platform.machine()}; it has {supported}.")


def _dynamic(model: Any) -> Any:
    kinds = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    if not any(type(part) in kinds for part in model.modules()):
        raise InvalidInput("int8-dynamic reaches Linear, LSTM and GRU layers, and there are none. Use 'int8'.")
    torch.backends.quantized.engine = _engine()
    with _quiet():
        convert: Any = torch.ao.quantization.quantize_dynamic
        return convert(copy.deepcopy(model).eval(), kinds, dtype=torch.qint8)


def _reshaping(graph: Any) -> Any:
    # int8 convolutions return channels-last memory, on which view() fails where reshape() copies.
    for node in graph.graph.nodes:
        if node.op == "call_method" and node.target == "view":
            node.target = "reshape"
    graph.recompile()
    return graph


def _static(model: Any, calibration: Batches, fit: Fit | None) -> Any:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx

    x, _ = first(calibration, "calibration")
    if isinstance(x, dict):
        raise InvalidInput("int8-static traces a module by position: give its inputs as one array or a tuple.")
    example = tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in arrays(x).values())
    torch.backends.quantized.engine = _engine()
    twin = copy.deepcopy(model)
    try:
        with _quiet():
            if fit is not None:
                ready = prepare_qat_fx(twin.train(), get_default_qat_qconfig_mapping(_engine()), example)
                fine_tune(TorchModels(), ready, calibration, fit)
            else:
                ready = prepare_fx(twin.eval(), get_default_qconfig_mapping(_engine()), example)
                with torch.inference_mode():
                    for batch, _ in Head(calibration, CALIBRATION_ROWS):
                        call(ready, batch)
            return _reshaping(convert_fx(ready.eval()))
    except torch.fx.proxy.TraceError as error:
        raise InvalidInput(
            f"int8-static must trace the module: {error}. Use 'int8', which needs no tracing."
        ) from error

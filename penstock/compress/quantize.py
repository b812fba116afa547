"""Quantization by one name for Keras and torch models in memory.

Covers: choosing the framework's way.
Does not cover: the ways themselves (compress/keras/quantize.py, compress/torch/quantize.py), quantized LiteRT files
(export.py).
"""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.compress.data import Batches
from penstock.compress.framework import framework_of
from penstock.compress.train import Fit
from penstock.core.events import events

ModelT = TypeVar("ModelT")


def quantize(model: ModelT, mode: str, *, calibration: Batches | None = None, fit: Fit | None = None) -> ModelT:
    """A quantized copy of a model; the original is untouched.

    Keras: float16, int8, int4, float8. torch: float16, float8, int8, int4 (weights only), int8-dynamic, and
    int8-static, which streams the first rows of `calibration`. `fit` also trains on `calibration`: in torch under
    simulated quantization (weight-only modes and int8-static), in Keras on int8 weights through LoRA.

    Example: small = quantize(module, "int4", calibration=train, fit=Fit(epochs=1, learning_rate=1e-4))
    """
    return quantized(model, mode, calibration=calibration, fit=fit)[0]  # type: ignore[no-any-return]


def quantized(
    model: Any, mode: str, *, calibration: Batches | None = None, fit: Fit | None = None
) -> tuple[Any, list[str]]:
    """As `quantize`, with what there is to know about the result."""
    framework = framework_of(model)
    if framework.name == "torch":
        from penstock.compress.torch.quantize import quantize_torch as convert
    else:
        from penstock.compress.keras.quantize import quantize_keras as convert
    made, notes = convert(model, mode, data=calibration, fit=fit)
    events.emit("shrink.quantize", framework.name, mode=mode, notes=notes)
    return made, notes

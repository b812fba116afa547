"""Smaller numbers for Keras weights, in files that plain Keras opens.

Covers: Keras' own quantize modes, half-precision storage, fine-tuning on quantized weights, how much of a model they
reach.
Does not cover: LiteRT files (export.py), which are the way for convolution networks.

Keras quantizes Dense, EinsumDense and Embedding layers; it skips convolutions without a word. So the share of
parameters that was reached is counted, and nothing reached is an error.

Keras cannot train int8 weights. What it can: small matrices beside them (LoRA) that are trained while the int8 weights
are used as they are, and merged into them afterwards. The result is an ordinary int8 model.
"""

from __future__ import annotations

import warnings
from typing import Any

from penstock.compress.data import Batches
from penstock.compress.framework import framework_of
from penstock.compress.keras.trace import graph_of
from penstock.compress.train import Fit, fine_tune
from penstock.core.errors import InvalidInput
from penstock.guard.keras.private import all_layers

MODES = ("float16", "int8", "int4", "float8")
LORA_RANK = 8


def quantize_keras(
    model: Any, mode: str, *, data: Batches | None = None, fit: Fit | None = None
) -> tuple[Any, list[str]]:
    """A quantized copy of a Keras model, and what to know about it. `fit` trains on `data` after quantization."""
    if mode not in MODES:
        raise InvalidInput(
            f"Keras has no quantization {mode!r}; it has {', '.join(MODES)}. Full int8 with calibrated activations "
            "needs a LiteRT file: write to a path that ends in .tflite."
        )
    graph_of(model)
    if fit is not None and mode != "int8":
        raise InvalidInput(
            f"Keras fine-tunes quantized weights only as int8 (with LoRA), not {mode}. Fine-tune first, quantize last."
        )
    if mode == "float16":
        return _half(model), [
            "float16: weights and computing in half precision; on most CPUs this is slower, not faster."
        ]
    twin, share = _quantized(model, mode)
    notes = [f"{mode}: Keras reached {share:.0%} of {model.count_params():,} parameters."]
    if share < 0.9:
        notes.append("Convolutions stay float32 in a .keras file (Keras skips them); a .tflite file has them in int8.")
    if mode == "float8":
        notes.append(
            "float8 in Keras stores float32 weights and speeds up training hardware; the file does not shrink."
        )
    if fit is not None:
        if data is None:
            raise InvalidInput("Fine-tuning on int8 weights needs data: pass calibration (or data).")
        twin = _tuned(model, twin, data, fit)
        notes.append(
            f"Fine-tuned for {fit.epochs} epochs on int8 weights through LoRA of rank {LORA_RANK}, then merged."
        )
    return twin, notes


def _quantized(model: Any, mode: str) -> tuple[Any, float]:
    """A quantized copy, and the share of parameters that Keras reached."""
    import keras

    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    reached = sum(layer.count_params() for layer in _leaves(twin) if hasattr(layer, "_int8_build"))
    if not reached:
        raise InvalidInput(
            f"Keras quantizes only Dense, EinsumDense and Embedding layers, and model {model.name!r} has none. "
            "Write to a .tflite file instead: LiteRT quantizes convolutions too."
        )
    share = reached / twin.count_params()
    with warnings.catch_warnings():
        # Keras warns of each layer without numbers to quantize, inputs too. What it did not reach is in the notes.
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method", UserWarning)
        twin.quantize(mode)
    return twin, share


def _tuned(model: Any, twin: Any, data: Batches, fit: Fit) -> Any:
    """An int8 model whose weights were moved by LoRA: its levels are drawn anew from weights plus what was learned."""
    layers = [layer for layer in _leaves(twin) if getattr(layer, "quantization_mode", None) == "int8"]
    for layer in layers:
        layer.enable_lora(LORA_RANK)
    fine_tune(framework_of(twin), twin, data, fit)
    merged, _ = _quantized(model, "int8")
    for old, new in zip(_leaves(twin), _leaves(merged), strict=True):
        if old not in layers:
            for source, target in zip(old.weights, new.weights, strict=True):
                target.assign(source)
        else:
            _merge(old, new)
    return merged


def _merge(old: Any, new: Any) -> None:
    kernel = "embeddings" if hasattr(old, "_embeddings") else "kernel"
    levels, scale, *_ = getattr(old, f"_get_{kernel}_with_merged_lora")()
    getattr(new, f"_{kernel}").assign(levels)
    getattr(new, f"{kernel}_scale").assign(scale)
    if getattr(old, "bias", None) is not None:
        new.bias.assign(old.bias)


def _leaves(model: Any) -> list[Any]:
    return [layer for layer in all_layers(model, include_self=False) if not hasattr(layer, "_nodes_by_depth")]


def _half(model: Any) -> Any:
    import keras

    def clone(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, keras.layers.Layer):
            config["dtype"] = "float16"
        return layer.__class__.from_config(config)

    twin = keras.models.clone_model(model, clone_function=clone, recursive=True)
    twin.set_weights(model.get_weights())
    return twin

"""Rematerialisation in a built Keras model: a layer's inner activations are computed again instead of kept.

Covers: finding the layers worth it, biggest activations first, and switching them on and off on every backend.
Does not cover: when to do it (guard/recovery/ladder.py), whether it pays (docs/guard.md has what was measured).

`keras.RematScope` acts when layers are made, and on TensorFlow it loses the gradients of weights that are not
arguments. Here a layer's call becomes a pure function: weights, state and tensors go in; outputs, the state after it
and added losses come out. So what is recomputed later changes nothing, and batch statistics and seeds advance once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.keras.private import (
    AutocastScope,
    all_layers,
    compute_output_spec,
    forget_losses,
    get_stateless_scope,
    in_stateless_scope,
)

FIRST_SHARE = 0.5
"""Share of all activation bytes that the first call of `more` covers."""


class Remat:
    """Switches recomputation on for layers of one model."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._on: dict[int, keras.layers.Layer] = {}
        self.names: list[str] = []

    def choose(self, wanted: bool | Sequence[str]) -> list[str]:
        """Switch on all layers, or those named. Refuses names that are not there or cannot be recomputed."""
        units = {layer.name: layer for layer in find_units(self._model)}
        names = list(units) if wanted is True else list(wanted or ())
        for name in names:
            if name not in units:
                raise InvalidInput(
                    f"remat: there is no layer {name!r} that can be recomputed. Layers with weights of their own are: "
                    f"{', '.join(units) or 'none'}."
                )
        return self._switch_on([units[name] for name in names])

    def more(self, data: Any) -> bool:
        """Switch on the biggest layers that are off: half of the bytes first, then the rest. False if none is left."""
        sizes = activation_nbytes(self._model, data)
        units = [layer for layer in find_units(self._model) if id(layer) not in self._on]
        units.sort(key=lambda layer: -sizes.get(layer.name, 0))
        enough = FIRST_SHARE * sum(sizes.values()) if not self._on else float("inf")
        chosen: list[keras.layers.Layer] = []
        covered = 0
        for layer in units:
            if covered >= enough:
                break
            chosen.append(layer)
            covered += sizes.get(layer.name, 0)
        self._switch_on(chosen)
        return len(chosen) < len(units)

    def off(self) -> None:
        """Put every layer's own call back."""
        for layer in self._on.values():
            layer.__dict__.pop("call", None)
        self._on.clear()
        self.names.clear()

    def _switch_on(self, layers: Sequence[keras.layers.Layer]) -> list[str]:
        for layer in layers:
            if id(layer) not in self._on:
                # Past Keras' own __setattr__, which would look for layers and variables in it.
                layer.__dict__["call"] = _Recomputed(layer)
                self._on[id(layer)] = layer
                self.names.append(layer.name)
        return [layer.name for layer in layers]


def rematerialise(model: keras.Model) -> int:
    """Switch recomputation on for all layers with weights, for good; returns how many there are."""
    return len(Remat(model).choose(True))


class _Recomputed:
    """Stands for a layer's call."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        self._layer, self._call = layer, layer.call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        structure = (args, kwargs)
        leaves = keras.tree.flatten(structure)
        if not in_stateless_scope() or any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
            return self._call(*args, **kwargs)
        places = [i for i, leaf in enumerate(leaves) if keras.ops.is_tensor(leaf)]
        layer = self._layer
        variables = [*layer.trainable_variables, *layer.non_trainable_variables]
        outer = get_stateless_scope()
        shape: list[Any] = []

        def pure(*flat: Any) -> tuple[Any, ...]:
            values, tensors = flat[: len(variables)], flat[len(variables) :]
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            own_args, own_kwargs = keras.tree.pack_sequence_as(structure, filled)
            scope = keras.StatelessScope(collect_losses=True)
            scope.state_mapping.update({id(v): value for v, value in zip(variables, values, strict=True)})
            with scope, _autocast(layer):
                out = self._call(*own_args, **own_kwargs)
            for inner in all_layers(layer, include_self=False):
                forget_losses(inner)  # their losses become this layer's, below
            after = [scope.get_current_value(v) for v in layer.non_trainable_variables]
            # Only the structure: tensors in it would be kept as long as this function, that is until the backward pass.
            shape[:] = [keras.tree.map_structure(lambda leaf: 0, out), len(after), len(scope.losses)]
            return (*keras.tree.flatten(out), *after, *scope.losses)

        given = [_value(outer, variable) for variable in variables]
        found = keras.remat(pure)(*given, *(leaves[place] for place in places))
        out, num_state, num_losses = shape
        flat = list(found) if isinstance(found, (tuple, list)) else [found]
        count = len(flat) - num_state - num_losses
        for variable, value in zip(layer.non_trainable_variables, flat[count : count + num_state], strict=True):
            outer.add_update((variable, value))
        for loss in flat[count + num_state :]:
            layer.add_loss(loss)
        return keras.tree.pack_sequence_as(out, flat[:count])


def find_units(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Layers with weights, in call order; models inside the model are looked into, other layers are one unit."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from find_units(layer)
        elif layer.trainable_variables and getattr(layer, "quantization_mode", None) is None:
            yield layer


def activation_nbytes(model: keras.Model, data: Any) -> dict[str, int]:
    """Bytes that each unit hands on for a batch of this shape, found without computing anything."""
    sizes: dict[str, int] = {}
    watched = list(find_units(model))
    calls = [layer.__dict__.get("call") for layer in watched]

    def watch(layer: keras.layers.Layer) -> Any:
        inner = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            out = inner(*args, **kwargs)
            sizes[layer.name] = sizes.get(layer.name, 0) + sum(_nbytes(leaf) for leaf in keras.tree.flatten(out))
            return out

        return call

    specs = keras.tree.map_structure(
        lambda a: None if a is None else keras.KerasTensor(a.shape, dtype=keras.backend.standardize_dtype(a.dtype)),
        data,
    )
    try:
        for layer in watched:
            layer.__dict__["call"] = watch(layer)
        compute_output_spec(lambda x: model(x, training=True), specs)
    finally:
        for layer, call in zip(watched, calls, strict=True):
            layer.__dict__.pop("call", None)
            if call is not None:
                layer.__dict__["call"] = call
    return sizes


def _nbytes(leaf: Any) -> int:
    shape = [side if side is not None else 1 for side in getattr(leaf, "shape", ())]
    return int(np.prod(shape)) * (2 if str(getattr(leaf, "dtype", "")).endswith("16") else 4)


def _dtype(array: Any) -> str:
    return str(keras.backend.standardize_dtype(array.dtype))


def _value(scope: Any, variable: Any) -> Any:
    found = scope.get_current_value(variable)
    return variable.value if found is None else found


def _autocast(layer: keras.layers.Layer) -> Any:
    dtype = layer.compute_dtype if layer.autocast and layer.compute_dtype != layer.variable_dtype else None
    return AutocastScope(dtype)

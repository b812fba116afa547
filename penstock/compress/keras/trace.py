"""Reading the channels of a Keras graph and building the same graph with fewer of them.

Covers: Sequential, functional and nested models, shared layers, several inputs and outputs.
Does not cover: subclassed models (refused by name), what happens inside layers (layers.py; the channels of custom
ones are left alone).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.compress.keras.layers import KerasLayers
from penstock.compress.thin.channels import Ids, Mask, Slot, Trace, cut
from penstock.core.errors import InvalidInput


def graph_of(model: Any) -> Any:
    """The functional graph inside a model; raises for models that have none."""
    import keras

    if isinstance(model, keras.Sequential):
        graph = getattr(model, "_functional", None)
        if graph is None:
            raise InvalidInput(f"Model {model.name!r} is not built. Call it on a batch, or give it an Input, first.")
        return graph
    if isinstance(model, keras.Model) and hasattr(model, "_nodes_by_depth"):
        return model
    raise InvalidInput(
        f"Model {getattr(model, 'name', model)!r} ({type(model).__name__}) is a subclassed model: its graph is Python "
        "code, so its layers cannot be resized. Build it with keras.Sequential or keras.Model(inputs, outputs), or "
        "pass a smaller model of your own to distill()."
    )


def trace_keras(model: Any) -> Trace:
    """Number the channels of a Keras model. Inputs and outputs keep their sizes."""
    tracer = _Tracer()
    trace, graph = tracer.trace, graph_of(model)
    inputs = [trace.channels.fresh(_last(tensor), "input") for tensor in graph.inputs]
    for ids in [*inputs, *tracer.walk(model, inputs)]:
        trace.channels.pin(ids, "inputs and outputs keep their sizes")
    return trace


def arrays_of(model: Any) -> dict[Hashable, Any]:
    """Every weight of a model, by identity of its variable."""
    return {id(variable): np.asarray(variable) for variable in model.weights}


def rebuild_keras(model: Any, trace: Trace, keep: Mask, *, copy_weights: bool = True) -> Any:
    """The same graph with the kept channels only, with their weights or freshly initialised."""
    import keras

    changes: dict[Hashable, dict[str, int]] = {}
    for layer, key, ids in trace.sizes:
        changes.setdefault(layer, {})[key] = int(keep[ids].sum())
    slots: dict[Hashable, list[Slot]] = {}
    for slot in trace.slots:
        slots.setdefault(slot.array, []).append(slot)
    pairs: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        if _nested(layer):
            widths = [changes[id(layer)][f"input {i}"] for i in range(len(layer.inputs))]
            inputs = [_resized(tensor, width) for tensor, width in zip(layer.inputs, widths, strict=True)]
            return keras.models.clone_model(
                layer, input_tensors=inputs if len(inputs) > 1 else inputs[0], clone_function=clone
            )
        config = layer.get_config()
        for key, value in changes.get(id(layer), {}).items():
            outer, _, inner = key.rpartition("/")
            if outer:
                config[outer]["config"][inner] = value
            elif key == "target_shape":
                config[key] = (*config[key][:-1], value if config[key][-1] != -1 else -1)
            else:
                config[key] = value
        made = layer.__class__.from_config(config)
        pairs.append((layer, made))
        return made

    small = keras.models.clone_model(model, clone_function=clone)
    if copy_weights:
        for old, new in pairs:
            for source, target in zip(getattr(old, "weights", ()), getattr(new, "weights", ()), strict=True):
                target.assign(cut(np.asarray(source), slots.get(id(source), []), keep))
    return small


def _nested(op: Any) -> bool:
    import keras

    return isinstance(op, keras.Model) and (isinstance(op, keras.Sequential) or hasattr(op, "_nodes_by_depth"))


def _resized(tensor: Any, width: int) -> Any:
    import keras

    shape = tensor.shape[1:]
    fixed = len(shape) == 0 or shape[-1] is None
    return keras.Input(shape if fixed else (*shape[:-1], width), dtype=tensor.dtype, name=tensor.name)


def _last(tensor: Any) -> int:
    size = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    return int(size) if size is not None else 1


class _Tracer:
    """Walks nodes in order; `made` remembers layers with weights, which may be called twice."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.layers = KerasLayers(self.trace)
        self.made: dict[int, tuple[list[Ids], list[Ids]]] = {}

    def walk(self, model: Any, inputs: list[Ids]) -> list[Ids]:
        graph = graph_of(model)
        flows = {id(tensor): ids for tensor, ids in zip(graph.inputs, inputs, strict=True)}
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in graph._nodes_by_depth[depth]:
                if not node.is_input:
                    outputs = self.node(node, [flows[id(tensor)] for tensor in node.input_tensors])
                    flows.update((id(t), ids) for t, ids in zip(node.outputs, outputs, strict=True))
        return [flows[id(tensor)] for tensor in graph.outputs]

    def node(self, node: Any, inputs: list[Ids]) -> list[Ids]:
        op = node.operation
        if _nested(op):
            self.trace.sizes.extend((id(op), f"input {i}", ids) for i, ids in enumerate(inputs))
            return self.walk(op, inputs)
        if getattr(op, "quantization_mode", None) is not None:
            raise InvalidInput(f"Layer {op.name!r} is already quantized; resize the model first, quantize it last.")
        if id(op) in self.made:
            first_inputs, outputs = self.made[id(op)]
            for ids, first in zip(inputs, first_inputs, strict=True):
                self.trace.channels.join(first, ids, f"Shared layer {op.name!r}")
            return outputs
        outputs = self.apply(op, node, inputs)
        if getattr(op, "weights", None):
            self.made[id(op)] = (inputs, outputs)
        return outputs

    def apply(self, op: Any, node: Any, inputs: list[Ids]) -> list[Ids]:
        kind = type(op).__name__
        known = type(op).__module__.startswith("keras.") and getattr(op, "data_format", None) != "channels_first"
        rule = self.layers.rule(kind) if known else None
        made = rule(op, node, inputs) if rule is not None and len(node.outputs) == 1 else None
        if made is not None:
            return [made]
        where = f"Layer {op.name!r} ({kind}) is not one whose channels can be followed, so those that reach it stay."
        outputs = [self.trace.channels.fresh(_last(tensor), op.name) for tensor in node.outputs]
        for ids in [*inputs, *outputs]:
            self.trace.leave(ids, where)
        return outputs

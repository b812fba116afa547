"""Following channels through the graph of a torch module.

Covers: residual adds, concatenation, flattening, slicing, transposing, learned constants, calls with several tensors.
Does not cover: what happens inside a layer (layers.py), making the graph (trace.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.compress.thin.channels import Ids, Trace
from penstock.compress.torch.layers import LAST, TorchLayers

_MODULES = """
    ReLU ReLU6 LeakyReLU ELU GELU SiLU Mish Hardswish Hardsigmoid Sigmoid Tanh Softplus Softmax LogSoftmax Identity
    Dropout Dropout1d Dropout2d Dropout3d MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d
    AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d ZeroPad2d Upsample
"""
_CALLS = """
    relu relu_ relu6 leaky_relu elu gelu silu mish hardswish sigmoid tanh softplus softmax log_softmax dropout
    contiguous max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d interpolate float
"""
PASSING_MODULES, PASSING_CALLS = frozenset(_MODULES.split()), frozenset(_CALLS.split())
MERGING_CALLS = frozenset(["add", "add_", "sub", "mul", "mul_", "iadd", "imul", "maximum", "minimum"])
REDUCING_CALLS = frozenset(["mean", "sum", "amax", "amin"])


@dataclass(frozen=True)
class ChannelFlow:
    """A tensor's channel numbers and the axis they lie on."""

    ids: Ids
    axis: int


Bundle = tuple["ChannelFlow | Bundle | None", ...]
"""What a layer that returns a tuple gave; None for a part that has no channels."""


class GraphWalk:
    """Goes through an fx graph in order; `made` remembers modules that are called more than once."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.trace = graph, Trace()
        self.layers = TorchLayers(self.trace)
        self.flows: dict[Any, ChannelFlow] = {}
        self.bundles: dict[Any, Bundle] = {}
        self.made: dict[str, tuple[list[Ids], ChannelFlow | Bundle]] = {}

    def run(self) -> Trace:
        for node in self.graph.graph.nodes:
            if node.op == "output":
                self.pin(node, "outputs keep their sizes")
            elif node.op == "placeholder":
                self.unknown(node, "inputs keep their sizes")
            elif node.op != "get_attr" and node.target not in ("size", getattr):
                self.visit(node)
        self.trace.settle()
        return self.trace

    def visit(self, node: Any) -> None:
        """One operation: where its channels went, or a note that they stay."""
        if not any(source in self.flows or source in self.bundles for source in node.all_input_nodes):
            if _name(node) == "expand" and _shape(node.args[0]) is not None:
                self.flows[node] = self.token(node)
            elif _shape(node) is not None:
                self.unknown(node, "constants keep their sizes")
            return
        made = self.module(node) if node.op == "call_module" else self.call(node)
        if isinstance(made, ChannelFlow):
            self.flows[node] = made
        elif made is not None:
            self.bundles[node] = made
        else:
            self.leave(node)

    def unknown(self, node: Any, reason: str) -> ChannelFlow:
        """A tensor about whose channels nothing is known but that they stay."""
        shape = _shape(node) or (1, 1)
        axis = min(1, len(shape) - 1)
        self.flows[node] = ChannelFlow(self.trace.channels.fresh(shape[axis] if shape else 1, node.name), axis)
        self.trace.channels.pin(self.flows[node].ids, reason)
        return self.flows[node]

    def pin(self, node: Any, reason: str) -> None:
        for ids in self.reaching(node):
            self.trace.channels.pin(ids, reason)

    def reaching(self, node: Any) -> Iterator[Ids]:
        """The channel numbers of all tensors that an operation reads."""
        for source in node.all_input_nodes:
            yield from (flow.ids for flow in _flat((self.flows.get(source), self.bundles.get(source, ()))))

    def leave(self, node: Any) -> None:
        """Pin what reaches an operation, and say so unless it stays anyway."""
        kind = type(self.graph.get_submodule(node.target)).__name__ if node.op == "call_module" else "operation"
        advice = " Write x.flatten(1) instead of fixed sizes." if node.target in ("view", "reshape") else ""
        title = node.target if node.op == "call_module" else _name(node)
        reason = (
            f"{title!r} ({kind}) is not a step whose channels can be followed, so those that reach it stay.{advice}"
        )
        for ids in self.reaching(node):
            if any(one not in self.trace.channels.pinned for one in ids.tolist()):
                self.trace.leave(ids, reason)
        self.unknown(node, reason)

    def ids_on(self, node: Any, axis: int) -> Ids:
        """The channel numbers of a tensor along an axis; pinned ones where its channels lie elsewhere."""
        shape = _shape(node) or (1, 1)
        axis %= len(shape)
        if node not in self.flows:
            return self.constant(node, axis, shape)
        flow = self.flows[node]
        if flow.axis == axis:
            return flow.ids
        fresh, channels = self.trace.channels.fresh(shape[axis], node.name), self.trace.channels
        if all(one in channels.pinned for one in flow.ids.tolist()):
            channels.pin(fresh, channels.pinned[int(flow.ids[0])])
            return fresh
        for ids in (flow.ids, fresh):
            self.trace.leave(ids, f"{node.name!r} is read along another axis than it was made, so its channels stay.")
        return fresh

    def constant(self, node: Any, axis: int, shape: tuple[int, ...]) -> Ids:
        """A parameter or buffer that forward uses itself, such as a position table, is cut with what it is added to."""
        ids = self.trace.channels.fresh(shape[axis], node.name)
        self.flows[node] = ChannelFlow(ids, axis)
        path, _, name = str(node.target).rpartition(".")
        if name.startswith("_tensor_constant"):  # made by tracing; the module itself does not hold it
            self.trace.leave(ids, f"A tensor that forward makes of numbers keeps its size, and {node.name!r} is one.")
        else:
            self.trace.slot((path, name), axis, ids)
        return ids

    def token(self, node: Any) -> ChannelFlow:
        """A learned constant that is repeated for every row: its channels lie on its last axis that is not 1."""
        axes = [axis for axis, count in enumerate(_shape(node.args[0]) or ()) if count > 1]
        ids = self.ids_on(node.args[0], axes[-1] if axes else -1)
        return ChannelFlow(
            ids, len(_shape(node) or ()) - len(_shape(node.args[0]) or ()) + self.flows[node.args[0]].axis
        )

    def call(self, node: Any) -> ChannelFlow | Bundle | None:
        """An operation that is not a layer."""
        name, shape = _name(node), _shape(node)
        sources = [n for n in node.all_input_nodes if n in self.flows]
        if name == "getitem" and node.args[0] in self.bundles:
            return self.part(node)
        if shape is None or not sources:
            return None
        if name in PASSING_CALLS and len(sources) == 1:
            return self.flows[sources[0]]
        if name in MERGING_CALLS:
            return self.merge(node, shape)
        if name in ("cat", "concat"):
            return self.concatenate(node, shape)
        return self.reshaped(node, name, sources[0]) if sources[0] is node.args[0] else None

    def part(self, node: Any) -> ChannelFlow | Bundle | None:
        picked = self.bundles[node.args[0]][node.args[1]]
        return self.unknown(node, "attention weights keep their sizes") if picked is None else picked

    def reshaped(self, node: Any, name: str, source: Any) -> ChannelFlow | None:
        """An operation that moves, drops or joins axes."""
        flow, rank = self.flows[source], len(_shape(source) or ())
        arguments = node.args[1:]
        if name in REDUCING_CALLS:
            return _reduced(node, flow, rank)
        if name == "getitem":
            return _picked(node.args[1], flow, rank)
        if name in ("transpose", "permute", "unsqueeze", "squeeze"):
            return _moved(name, arguments, flow, rank)
        start = arguments[0] if arguments else node.kwargs.get("start_dim")
        open_view = name in ("view", "reshape") and tuple(arguments[1:]) == (-1,) and not isinstance(start, int)
        return self.flatten(node, source) if open_view or (name == "flatten" and start == 1) else None

    def merge(self, node: Any, shape: tuple[int, ...]) -> ChannelFlow | None:
        sources = [n for n in node.all_input_nodes if _shape(n) is not None]
        whole = next((n for n in sources if n in self.flows and _shape(n) == shape), None)
        if whole is None:
            return None
        first, axis = self.flows[whole].ids, self.flows[whole].axis
        for other in sources:
            if other is whole:
                continue
            size = _shape(other) or ()
            there = axis - (len(shape) - len(size))  # axes are matched from the right
            if there >= 0 and size[there] != 1:
                self.trace.channels.join(first, self.ids_on(other, there), f"{node.name!r}")
            elif other in self.flows and self.flows[other].axis != there and len(self.flows[other].ids) > 1:
                self.trace.channels.pin(self.flows[other].ids, f"{node.name!r} spreads it over another axis")
        return ChannelFlow(first, axis)

    def concatenate(self, node: Any, shape: tuple[int, ...]) -> ChannelFlow | None:
        parts = list(node.args[0])
        axis = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)
        if any(_shape(part) is None for part in parts):
            return None
        followed = [part for part in parts if part in self.flows]
        known = next((part for part in followed if self.flows[part].axis != axis), followed[0])
        if self.flows[known].axis == axis:
            return ChannelFlow(np.concatenate([self.ids_on(part, axis) for part in parts]), axis)
        across = self.flows[known].axis  # tokens are put one after the other: all have the same channels
        for part in parts:
            self.trace.channels.join(self.flows[known].ids, self.ids_on(part, across), f"{node.name!r}")
        return self.flows[known]

    def flatten(self, node: Any, source: Any) -> ChannelFlow | None:
        flow, before, shape = self.flows[source], _shape(source), _shape(node)
        if before is None or shape is None or len(shape) != 2:
            return None
        other = shape[1] // len(flow.ids)
        if flow.axis == len(before) - 1:
            return ChannelFlow(np.tile(flow.ids, other), 1)
        return ChannelFlow(np.repeat(flow.ids, other), 1) if flow.axis == 1 else None

    def module(self, node: Any) -> ChannelFlow | Bundle | None:
        path, layer = str(node.target), self.graph.get_submodule(node.target)
        kind = type(layer).__name__ if type(layer).__module__.startswith("torch.nn.") else ""
        source = node.args[0] if node.args else None
        if source not in self.flows:
            return None
        if kind in PASSING_MODULES:
            return self.flows[source]
        if kind == "Flatten":
            return self.flatten(node, source) if layer.start_dim == 1 and layer.end_dim == -1 else None
        inputs = self.inputs(node, kind)
        if inputs is None:
            return None
        if path in self.made:
            for first, ids in zip(self.made[path][0], inputs, strict=True):
                self.trace.channels.join(first, ids, f"Shared module {path!r}")
            return self.made[path][1]
        made = self.layer(kind, path, layer, inputs, len(_shape(node) or _shape(source) or (1, 1)))
        if made is not None:
            self.made[path] = (inputs, made)
        return made

    def inputs(self, node: Any, kind: str) -> list[Ids] | None:
        """The channels of the tensors that a layer reads; None where it is called in a way that is not followed."""
        if kind == "Embedding":
            return []
        names = {"MultiheadAttention": ("query", "key", "value"), "TransformerDecoderLayer": ("tgt", "memory")}
        wanted = names.get(kind, ("input",))
        given = [*node.args, *(node.kwargs[name] for name in wanted[len(node.args) :] if name in node.kwargs)]
        masks = [n for n in node.all_input_nodes if n not in given[: len(wanted)]]
        three = any(len(_shape(mask) or ()) > 2 for mask in masks)  # such masks have an axis of heads
        if len(given) < len(wanted) or any(n not in self.flows for n in given[: len(wanted)]) or three:
            return None
        if kind in ("LSTM", "GRU", "RNN") and masks:  # a state that the caller made has a size of its own
            return None
        return [self.ids_on(n, -1 if kind in LAST else 1) for n in given[: len(wanted)]]

    def layer(self, kind: str, path: str, layer: Any, inputs: list[Ids], rank: int) -> ChannelFlow | Bundle | None:
        if kind in ("LSTM", "GRU", "RNN"):
            made = self.layers.recurrent(path, layer, inputs[0])
            if made is None:
                return None
            out, state = ChannelFlow(made[0], rank - 1), ChannelFlow(made[1], rank - 1)
            return (out, (state, state) if kind == "LSTM" else state)
        if kind == "MultiheadAttention":
            return (ChannelFlow(self.layers.attention(path, layer, inputs[0], inputs[1], inputs[2]), rank - 1), None)
        if kind == "TransformerDecoderLayer":
            return ChannelFlow(self.layers.decoder_layer(path, layer, *inputs), rank - 1)
        ids = self.layers.simple(kind, path, layer, inputs[0] if inputs else np.empty(0, dtype=np.int64))
        return None if ids is None else ChannelFlow(ids, rank - 1 if kind in LAST or kind == "Embedding" else 1)


def _flat(bundle: Bundle) -> Iterator[ChannelFlow]:
    for part in bundle:
        if isinstance(part, ChannelFlow):
            yield part
        elif part is not None:
            yield from _flat(part)


def _reduced(node: Any, flow: ChannelFlow, rank: int) -> ChannelFlow | None:
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None:
        return None
    gone = {int(dim) % rank for dim in (given if isinstance(given, (list, tuple)) else [given])}
    kept = bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
    below = 0 if kept else sum(dim < flow.axis for dim in gone)
    # A mean over the channels themselves mixes them.
    return None if flow.axis in gone else ChannelFlow(flow.ids, flow.axis - below)


def _picked(index: Any, flow: ChannelFlow, rank: int) -> ChannelFlow | None:
    """Where channels are after x[index]; None where some of them are picked."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (rank - sum(item is not None for item in items) + 1)
    items += [slice(None)] * (rank - sum(item is not None for item in items))
    read, written = 0, 0
    for item in items:
        if item is None:
            written += 1
        elif read == flow.axis:
            return ChannelFlow(flow.ids, written) if item == slice(None) else None
        else:
            written += isinstance(item, slice)
            read += 1
            if not isinstance(item, (slice, int)):
                return None
    return None


def _moved(name: str, arguments: tuple[Any, ...], flow: ChannelFlow, rank: int) -> ChannelFlow | None:
    """Where channels are after transpose, permute, unsqueeze or squeeze."""
    dims = [d for given in arguments for d in (given if isinstance(given, (list, tuple)) else [given])]
    if not dims or not all(isinstance(d, int) for d in dims):
        return None
    if name == "unsqueeze":
        return ChannelFlow(flow.ids, flow.axis + (dims[0] % (rank + 1) <= flow.axis))
    dims = [d % rank for d in dims]
    if name == "squeeze":
        return None if flow.axis in dims else ChannelFlow(flow.ids, flow.axis - sum(d < flow.axis for d in dims))
    order = dims if name == "permute" else list(range(rank))
    if name == "transpose":
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return ChannelFlow(flow.ids, order.index(flow.axis))


def _shape(node: Any) -> tuple[int, ...] | None:
    meta = node.meta.get("tensor_meta")
    shape = getattr(meta, "shape", None)
    return None if shape is None else tuple(int(n) for n in shape)


def _name(node: Any) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))

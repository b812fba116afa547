"""How each standard Keras layer treats channels.

Covers: dense, convolution, norm, embedding, recurrent, bidirectional and attention layers, merging and reshaping.
Does not cover: the graph between layers, building the smaller model (trace.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.compress.thin.channels import Ids, Trace

_PASSING = """
    Activation ReLU LeakyReLU ELU Softmax Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise
    GaussianDropout ActivityRegularization Rescaling Identity MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D
    AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D
    Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D Resizing Relu Relu6 Gelu Silu Sigmoid Tanh Elu
    LeakyRelu HardSwish HardSigmoid Softplus
"""
PASSING = frozenset(_PASSING.split())
MERGING = frozenset(["Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"])
CONVS = frozenset(["Conv1D", "Conv2D", "Conv3D"])
TRANSPOSED = frozenset(["Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"])
DEPTHWISE = frozenset(["DepthwiseConv1D", "DepthwiseConv2D"])
SEPARABLE = frozenset(["SeparableConv1D", "SeparableConv2D"])
NORMS = frozenset(["BatchNormalization", "LayerNormalization"])
RECURRENT = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}


class KerasLayers:
    """Writes slots and sizes of one layer after the other into a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def rule(self, kind: str) -> Callable[[Any, Any, list[Ids]], Ids | None] | None:
        groups = (
            (PASSING, self.passing), (MERGING, self.merging), (CONVS, self.conv), (TRANSPOSED, self.transposed),
            (DEPTHWISE, self.depthwise), (SEPARABLE, self.separable), (NORMS, self.norm), (RECURRENT, self.recurrent),
        )  # fmt: skip
        single = {
            "Dense": self.dense, "Embedding": self.embedding, "Flatten": self.flatten, "Reshape": self.reshape,
            "Concatenate": self.concatenate, "MultiHeadAttention": self.attention, "Bidirectional": self.bidirectional,
        }  # fmt: skip
        return single.get(kind) or next((rule for kinds, rule in groups if kind in kinds), None)

    def passing(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        return inputs[0] if len(inputs) == 1 else None

    def merging(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        # A constant operand (x + array) has channels of its own that no slot describes.
        operands = [*node.arguments.args, *node.arguments.kwargs.values()]
        if any(isinstance(value, np.ndarray) and value.ndim for value in operands):
            return None
        widest = max(len(ids) for ids in inputs)
        whole = [ids for ids in inputs if len(ids) == widest]
        for ids in whole[1:]:
            self.trace.channels.join(whole[0], ids, f"Layer {op.name!r}")
        return whole[0]

    def concatenate(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        rank = len(node.outputs[0].shape)
        if op.axis in (-1, rank - 1):
            return np.concatenate(inputs)
        return self.merging(op, node, inputs) if len({len(ids) for ids in inputs}) == 1 else None

    def flatten(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        inner = node.input_tensors[0].shape[1:-1]
        return None if None in inner else np.tile(inputs[0], int(np.prod(inner, dtype=np.int64)))

    def reshape(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        before, after = node.input_tensors[0].shape[1:], node.outputs[0].shape[1:]
        if None in before or None in after:
            return None
        ids = inputs[0] if after[-1] == before[-1] else self.flatten(op, node, inputs) if len(after) == 1 else None
        if ids is not None:
            self.trace.sizes.append((id(op), "target_shape", ids))
        return ids

    def produce(self, op: Any, key: str, count: int, bias: Any = None) -> Ids:
        ids = self.trace.channels.fresh(count, op.name)
        self.trace.sizes.append((id(op), key, ids))
        if bias is not None:
            self.trace.slot(id(bias), 0, ids)
        return ids

    def dense(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ids = self.produce(op, "units", op.units, op.bias)
        self.trace.slot(id(op.kernel), 0, inputs[0])
        self.trace.slot(id(op.kernel), 1, ids, scored=True)
        return ids

    def embedding(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ids = self.produce(op, "output_dim", op.output_dim)
        self.trace.slot(id(op.embeddings), 1, ids, scored=True)
        return ids

    def conv(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        if op.groups != 1:
            return None
        ids = self.produce(op, "filters", op.filters, op.bias)
        self.trace.slot(id(op.kernel), op.kernel.ndim - 2, inputs[0])
        self.trace.slot(id(op.kernel), op.kernel.ndim - 1, ids, scored=True)
        return ids

    def transposed(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ids = self.produce(op, "filters", op.filters, op.bias)
        self.trace.slot(id(op.kernel), op.kernel.ndim - 1, inputs[0])
        self.trace.slot(id(op.kernel), op.kernel.ndim - 2, ids, scored=True)
        return ids

    def depthwise(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ids = np.repeat(inputs[0], op.depth_multiplier)
        self.trace.slot(id(op.kernel), op.kernel.ndim - 2, inputs[0])
        if op.bias is not None:
            self.trace.slot(id(op.bias), 0, ids)
        return ids

    def separable(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ids = self.produce(op, "filters", op.filters, op.bias)
        depth, point = op.depthwise_kernel, op.pointwise_kernel
        self.trace.slot(id(depth), depth.ndim - 2, inputs[0])
        self.trace.slot(id(point), point.ndim - 2, np.repeat(inputs[0], op.depth_multiplier))
        self.trace.slot(id(point), point.ndim - 1, ids, scored=True)
        return ids

    def norm(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        rank = len(node.input_tensors[0].shape)
        axes = op.axis if isinstance(op.axis, (list, tuple)) else [op.axis]
        if len(axes) != 1 or axes[0] not in (-1, rank - 1):
            return None
        for variable in op.weights:
            self.trace.slot(id(variable), 0, inputs[0])
        return inputs[0]

    def recurrent(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        if len(inputs) != 1:
            return None
        ids = self.produce(op, "units", op.units)
        self.cell(op, inputs[0], ids)
        return ids

    def cell(self, op: Any, inputs: Ids, units: Ids) -> None:
        cell, gates = op.cell, np.tile(units, RECURRENT[type(op).__name__])
        self.trace.slot(id(cell.kernel), 0, inputs)
        self.trace.slot(id(cell.kernel), 1, gates, scored=True)
        self.trace.slot(id(cell.recurrent_kernel), 0, units)
        self.trace.slot(id(cell.recurrent_kernel), 1, gates, scored=True)
        if cell.bias is not None:
            self.trace.slot(id(cell.bias), cell.bias.ndim - 1, gates)

    def bidirectional(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        ways = (op.forward_layer, op.backward_layer)
        if len(inputs) != 1 or any(type(way).__name__ not in RECURRENT for way in ways):
            return None
        # One number in the config sizes both directions, so unit 3 of both goes or stays together.
        ids = self.produce(op, "layer/units", op.forward_layer.units)
        if "backward_layer" in op.get_config():
            self.trace.sizes.append((id(op), "backward_layer/units", ids))
        for way in ways:
            self.cell(way, inputs[0], ids)
        return np.tile(ids, 2) if op.merge_mode == "concat" else ids if op.merge_mode else None

    def attention(self, op: Any, node: Any, inputs: list[Ids]) -> Ids | None:
        config = op.get_config()
        given = dict(zip(("query", "value", "key"), node.arguments.args, strict=False)) | node.arguments.kwargs
        flows = {id(tensor): ids for tensor, ids in zip(node.input_tensors, inputs, strict=True)}
        named = {name: flows[id(t)] for name, t in given.items() if id(t) in flows}
        if config["output_shape"] is not None or not {"query", "value"} <= named.keys() <= {"query", "value", "key"}:
            return None
        heads = self.produce(op, "num_heads", op.num_heads)
        named.setdefault("key", named["value"])
        for name, ids in named.items():
            dense = getattr(op, f"{name}_dense")
            self.trace.slot(id(dense.kernel), 0, ids)
            self.trace.slot(id(dense.kernel), 1, heads, scored=True)
            if dense.bias is not None:
                self.trace.slot(id(dense.bias), 0, heads)
        out = op.output_dense
        self.trace.slot(id(out.kernel), 0, heads)
        # Without an explicit output_shape Keras makes the output as wide as the query, so the two are one family.
        self.trace.slot(id(out.kernel), 2, named["query"], scored=True)
        if out.bias is not None:
            self.trace.slot(id(out.bias), 0, named["query"])
        return named["query"]

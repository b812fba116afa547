"""How each standard torch layer treats channels.

Covers: dense, convolution, norm, embedding, recurrent, attention and transformer layers: which arrays follow which
channels, and which sizes in the layer change with them.
Does not cover: the graph between layers (walk.py), cutting weights (trace.py).

torch's attention makes its width of heads x head size, and that width is the one of the stream it reads. So heads
go together with channels of the stream, in whole heads. Recurrent layers have one size for all their layers and both
directions, so unit 3 of each goes or stays together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compress.thin.channels import Ids, Tie, Trace

CONVS = frozenset(["Conv1d", "Conv2d", "Conv3d"])
TRANSPOSED = frozenset(["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"])
NORMS = frozenset(["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"])
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAST = frozenset(["Linear", "LayerNorm", "RMSNorm", "LSTM", "GRU", "RNN", "MultiheadAttention",
                  "TransformerEncoderLayer", "TransformerEncoder", "TransformerDecoderLayer"])  # fmt: skip
"""Layers that read channels along the last axis; the others read axis 1."""


class TorchLayers:
    """Writes slots and sizes of one layer after the other into a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def simple(self, kind: str, path: str, layer: Any, ids: Ids) -> Ids | None:
        """The channels that a layer of one input makes; None where it cannot be followed."""
        if kind in CONVS | TRANSPOSED:
            return self._any_conv(kind, path, layer, ids)
        if kind in ("LayerNorm", "RMSNorm"):
            return self.norm(path, layer, ids, "normalized_shape") if len(layer.normalized_shape) == 1 else None
        if kind in NORMS:
            return self.norm(path, layer, ids, "num_features")
        rule = {
            "Linear": self.linear, "Embedding": self.embedding, "TransformerEncoderLayer": self.encoder_layer,
            "TransformerEncoder": self.encoder,
        }.get(kind)  # fmt: skip
        return rule(path, layer, ids) if rule is not None else None

    def _any_conv(self, kind: str, path: str, layer: Any, ids: Ids) -> Ids | None:
        if layer.groups == 1:
            return self.conv(path, layer, ids, 0 if kind in TRANSPOSED else 1)
        whole = kind in CONVS and layer.groups == layer.in_channels
        return self.depthwise(path, layer, ids) if whole else None

    def _produce(self, path: str, layer: Any, size: str, axis: int) -> Ids:
        ids = self.trace.channels.fresh(getattr(layer, size), path)
        self.trace.sizes.append((path, size, ids))
        self.trace.slot((path, "weight"), axis, ids, scored=True)
        if getattr(layer, "bias", None) is not None:
            self.trace.slot((path, "bias"), 0, ids)
        return ids

    def linear(self, path: str, layer: Any, ids: Ids) -> Ids:
        self.trace.sizes.append((path, "in_features", ids))
        self.trace.slot((path, "weight"), 1, ids)
        return self._produce(path, layer, "out_features", 0)

    def conv(self, path: str, layer: Any, ids: Ids, into: int) -> Ids:
        self.trace.sizes.append((path, "in_channels", ids))
        self.trace.slot((path, "weight"), into, ids)
        return self._produce(path, layer, "out_channels", 1 - into)

    def depthwise(self, path: str, layer: Any, ids: Ids) -> Ids:
        out = np.repeat(ids, layer.out_channels // layer.in_channels)
        self.trace.sizes.extend([(path, "in_channels", ids), (path, "groups", ids), (path, "out_channels", out)])
        self.trace.slot((path, "weight"), 0, out)
        if layer.bias is not None:
            self.trace.slot((path, "bias"), 0, out)
        return out

    def norm(self, path: str, layer: Any, ids: Ids, size: str) -> Ids:
        self.trace.sizes.append((path, size, ids))
        for name in ("weight", "bias", "running_mean", "running_var"):
            if getattr(layer, name, None) is not None:
                self.trace.slot((path, name), 0, ids)
        return ids

    def embedding(self, path: str, layer: Any, ids: Ids) -> Ids:
        return self._produce(path, layer, "embedding_dim", 1)

    def recurrent(self, path: str, layer: Any, ids: Ids) -> tuple[Ids, Ids] | None:
        """Channels of the output and of the last state; None for a projected LSTM."""
        if layer.proj_size:
            return None
        units = self.trace.channels.fresh(layer.hidden_size, path)
        self.trace.sizes.extend([(path, "input_size", ids), (path, "hidden_size", units)])
        gates, ways = np.tile(units, GATES[type(layer).__name__]), 2 if layer.bidirectional else 1
        out = np.tile(units, ways)
        for depth in range(layer.num_layers):
            for end in ("", "_reverse")[:ways]:
                self.trace.slot((path, f"weight_ih_l{depth}{end}"), 0, gates, scored=True)
                self.trace.slot((path, f"weight_ih_l{depth}{end}"), 1, out if depth else ids)
                self.trace.slot((path, f"weight_hh_l{depth}{end}"), 0, gates, scored=True)
                self.trace.slot((path, f"weight_hh_l{depth}{end}"), 1, units)
                for name in ("bias_ih", "bias_hh") if layer.bias else ():
                    self.trace.slot((path, f"{name}_l{depth}{end}"), 0, gates)
        return out, units

    def attention(self, path: str, layer: Any, query: Ids, key: Ids, value: Ids) -> Ids:
        """Heads of an nn.MultiheadAttention; what it gives has the channels of its query."""
        heads = self.trace.channels.fresh(layer.num_heads, path)
        wide = np.repeat(heads, layer.head_dim)
        self.trace.ties.append(Tie(query, heads, layer.head_dim, f"{path!r} (MultiheadAttention)"))
        sizes = {"embed_dim": query, "kdim": key, "vdim": value, "num_heads": heads}
        self.trace.sizes.extend((path, name, ids) for name, ids in sizes.items())
        if layer.in_proj_weight is not None:
            for other in (key, value):  # one matrix reads all three, so they are one family
                self.trace.channels.join(query, other, repr(path))
            self.trace.slot((path, "in_proj_weight"), 0, np.tile(wide, 3), scored=True)
            self.trace.slot((path, "in_proj_weight"), 1, query)
        else:
            for name, ids in (("q", query), ("k", key), ("v", value)):
                self.trace.slot((path, f"{name}_proj_weight"), 0, wide, scored=True)
                self.trace.slot((path, f"{name}_proj_weight"), 1, ids)
        if layer.in_proj_bias is not None:
            self.trace.slot((path, "in_proj_bias"), 0, np.tile(wide, 3))
        for name in ("bias_k", "bias_v"):
            if getattr(layer, name) is not None:
                self.trace.slot((path, name), 2, wide)
        self._back(f"{path}.out_proj", layer.out_proj, wide, query)
        return query

    def _back(self, path: str, layer: Any, ids: Ids, stream: Ids) -> None:
        """A Linear layer whose outputs are added to a stream."""
        self.trace.sizes.extend([(path, "in_features", ids), (path, "out_features", stream)])
        self.trace.slot((path, "weight"), 1, ids)
        self.trace.slot((path, "weight"), 0, stream, scored=True)
        if layer.bias is not None:
            self.trace.slot((path, "bias"), 0, stream)

    def encoder_layer(self, path: str, layer: Any, ids: Ids) -> Ids:
        self.attention(f"{path}.self_attn", layer.self_attn, ids, ids, ids)
        return self._feed_forward(path, layer, ids, ("norm1", "norm2"))

    def _feed_forward(self, path: str, layer: Any, ids: Ids, norms: tuple[str, ...]) -> Ids:
        self._back(f"{path}.linear2", layer.linear2, self.linear(f"{path}.linear1", layer.linear1, ids), ids)
        for name in norms:
            self.norm(f"{path}.{name}", getattr(layer, name), ids, "normalized_shape")
        return ids

    def encoder(self, path: str, layer: Any, ids: Ids) -> Ids | None:
        if layer.norm is not None and type(layer.norm).__name__ not in ("LayerNorm", "RMSNorm"):
            return None
        for number, one in enumerate(layer.layers):
            self.encoder_layer(f"{path}.layers.{number}", one, ids)
        if layer.norm is not None:
            self.norm(f"{path}.norm", layer.norm, ids, "normalized_shape")
        return ids

    def decoder_layer(self, path: str, layer: Any, ids: Ids, memory: Ids) -> Ids:
        self.attention(f"{path}.self_attn", layer.self_attn, ids, ids, ids)
        self.attention(f"{path}.multihead_attn", layer.multihead_attn, ids, memory, memory)
        return self._feed_forward(path, layer, ids, ("norm1", "norm2", "norm3"))

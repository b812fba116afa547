"""The models of forecast_error.py, in torch and in Keras, and batches for them.

Covers: three models that the choice of probes was tuned on, and three that it was not.
Does not cover: forecasting and measuring (forecast_error.py).

Each is a function `torch_NAME` or `keras_NAME`, for a probing process that is told `forecast_models.py:torch_cnn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

TUNED = ("cnn", "mlp", "transformer")
HELD_OUT = ("resnet", "gru", "decoder")
LENGTH, WORDS = 64, 1000


def batch(stack: str, kind: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of the shape that a model takes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, rows)
    if kind == "mlp":
        return rng.normal(size=(rows, 256)).astype(np.float32), labels
    if kind in ("transformer", "gru"):
        return rng.integers(0, WORDS, (rows, LENGTH)), labels
    if kind == "decoder":
        return rng.integers(0, WORDS, (rows, LENGTH)), rng.integers(0, WORDS, (rows, LENGTH))
    shape = (rows, 3, 32, 32) if stack == "torch" else (rows, 32, 32, 3)
    return rng.normal(size=shape).astype(np.float32), labels


# In torch. Imports are inside: this file also serves processes that must not load torch.


def torch_cnn() -> Any:
    from torch import nn

    layers = [layer for i in range(6) for layer in (nn.Conv2d(32 if i else 3, 32, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def torch_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


def torch_transformer() -> Any:
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, 128)
            self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 3)
            self.head = nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.embed(x)).mean(1))  # type: ignore[no-any-return]

    return Transformer()


def torch_resnet() -> Any:
    """Residual blocks with batch normalisation, halving the picture and doubling the width."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(given, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip
            self.short = nn.Conv2d(given, width, 1, stride) if (given, stride) != (width, 1) else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.path(x) + self.short(x))

    widths = [(32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    stem = nn.Conv2d(3, 32, 3, 1, 1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(stem, *(Block(*sizes) for sizes in widths), *head)


def torch_gru() -> Any:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, 128)
            self.rnn = nn.GRU(128, 192, num_layers=2, batch_first=True)
            self.head = nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(self.embed(x))[0][:, -1])  # type: ignore[no-any-return]

    return Recurrent()


def torch_decoder() -> Any:
    """A small language model: causal attention, normalisation first, a word for each position."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, length, width = x.shape
            cut = self.qkv(self.first(x)).view(rows, length, 3, self.heads, width // self.heads)
            q, k, v = cut.permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.wide(self.second(x))  # type: ignore[no-any-return]

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(WORDS, 128), nn.Parameter(torch.zeros(LENGTH, 128))
            self.blocks = nn.ModuleList([Block(128, 4) for _ in range(3)])
            self.head = nn.Linear(128, WORDS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x) + self.place
            for block in self.blocks:
                x = block(x)
            # classes second, as the loss wants them
            return self.head(x).transpose(1, 2)  # type: ignore[no-any-return]

    return Decoder(), nn.CrossEntropyLoss()


# In Keras, compiled.


def keras_cnn() -> Any:
    import keras
    from keras import layers

    convs = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return _compiled(keras.Sequential([keras.Input((32, 32, 3)), *convs, *head]))


def keras_mlp() -> Any:
    import keras
    from keras import layers

    hidden = [layers.Dense(2048, activation="relu") for _ in range(2)]
    return _compiled(keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10)]))


def keras_transformer() -> Any:
    import keras
    from keras import layers

    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 128)(given)
    for _ in range(3):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32, dropout=0.1)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(256, activation="relu")(x)))
    return _compiled(keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))))


def keras_resnet() -> Any:
    """Residual blocks with batch normalisation, halving the picture and doubling the width."""
    import keras
    from keras import layers

    conv = partial(layers.Conv2D, padding="same")
    given = keras.Input((32, 32, 3))
    x = conv(32, 3)(given)
    for width, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        path = layers.BatchNormalization()(conv(width, 3, strides=stride, use_bias=False)(x))
        path = conv(width, 3, use_bias=False)(layers.ReLU()(path))
        short = x if (x.shape[-1], stride) == (width, 1) else conv(width, 1, strides=stride)(x)
        x = layers.ReLU()(layers.Add()([layers.BatchNormalization()(path), short]))
    return _compiled(keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))


def keras_gru() -> Any:
    import keras
    from keras import layers

    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.GRU(192, return_sequences=True)(layers.Embedding(WORDS, 128)(given))
    return _compiled(keras.Model(given, layers.Dense(10)(layers.GRU(192)(x))))


def keras_decoder() -> Any:
    """A small language model: causal attention, normalisation first, a word for each position."""
    import keras
    from keras import layers

    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 128)(given)
    for _ in range(3):
        near = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(near, near, use_causal_mask=True)
        x = x + layers.Dense(128)(layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x)))
    return _compiled(keras.Model(given, layers.Dense(WORDS)(x)))


def _compiled(model: Any) -> Any:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(), loss, metrics=["accuracy"])
    return model


def builder(stack: str, kind: str) -> Callable[[], Any]:
    """The function that makes a model, by name."""
    found: Callable[[], Any] = globals()[name_of(stack, kind)]
    return found


def name_of(stack: str, kind: str) -> str:
    """Such as 'keras_cnn'."""
    return f"{'torch' if stack == 'torch' else 'keras'}_{kind}"

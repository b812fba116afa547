from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from penstock.compress import left_alone, open_model, quantize, remove_channels, save_model, width  # noqa: E402
from penstock.compress.framework import framework_of  # noqa: E402
from penstock.core.errors import BadData, InvalidInput  # noqa: E402

layers = keras.layers
RNG = np.random.default_rng(0)


def residual() -> keras.Model:
    """Residual adds by layer and by operator, depthwise, separable, concatenation, a squeeze gate."""
    start = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem")(start)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    x = layers.Add()([x, layers.Conv2D(16, 3, padding="same", activation="relu", name="inner")(x)])
    side = layers.SeparableConv2D(8, 3, padding="same", name="side")(layers.DepthwiseConv2D(3, padding="same")(x))
    x = layers.Concatenate()([side, x])
    x = x + layers.Conv2D(24, 1, name="mix")(x)
    gate = layers.Dense(24, activation="sigmoid", name="gate")(layers.GlobalAveragePooling2D()(x))
    x = layers.Multiply()([x, layers.Reshape((1, 1, 24))(gate)])
    x = layers.Dense(32, activation="relu", name="hidden")(layers.Flatten()(x))
    return keras.Model(start, layers.Dense(10, activation="softmax")(x))


def outputs(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(x, training=False)))


def test_removing_dead_channels_changes_nothing() -> None:
    model, x = residual(), RNG.random((3, 8, 8, 1)).astype(np.float32)
    # Channels 0..7 of the trunk, 0..3 of the side and their copies in the mix are dead from end to end.
    dead = {
        "stem": range(8),
        "inner": range(8),
        "side": range(4),
        "mix": [*range(4), *range(8, 16)],
        "hidden": range(16),
    }
    for name, gone in dead.items():
        for weight in model.get_layer(name).weights:
            if weight.path.endswith("depthwise_kernel"):
                continue
            values = np.array(keras.ops.convert_to_numpy(weight))
            values[..., list(gone)] = 0
            weight.assign(values)
    # A dead convolution still gives the norm's offset, which is zero in a new model.
    small = remove_channels(model, 0.5)
    assert small.count_params() < 0.35 * model.count_params()
    np.testing.assert_allclose(outputs(small, x), outputs(model, x), atol=1e-5)


def test_nested_and_shared_layers_are_followed() -> None:
    shared = layers.Dense(12, activation="relu")
    block = keras.Sequential([layers.Dense(20), layers.ReLU()])
    start = keras.Input((6,))
    x = layers.Dense(12)(start)
    x = shared(shared(x))
    model = keras.Model(start, layers.Dense(3)(block(x)))
    x = RNG.random((4, 6)).astype(np.float32)
    np.testing.assert_allclose(outputs(width(model, 1.0), x), outputs(model, x), atol=1e-6)
    small = width(model, 0.5)
    assert outputs(small, x).shape == (4, 3)
    assert small.count_params() < 0.5 * model.count_params()


def test_attention_loses_heads_and_recurrent_layers_units() -> None:
    start = keras.Input((5,), dtype="int32")
    x = layers.Embedding(20, 16)(start)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8, name="heads")(x, x))
    x = layers.GRU(10)(layers.LSTM(12, return_sequences=True)(x))
    model = keras.Model(start, layers.Dense(2)(x))
    tokens = RNG.integers(0, 20, (3, 5))
    small = width(model, 0.5)
    assert small.get_layer("heads").num_heads == 2
    assert outputs(small, tokens).shape == (3, 2)
    assert left_alone(model) == []
    np.testing.assert_allclose(outputs(width(model, 1.0), tokens), outputs(model, tokens), atol=1e-6)


def test_what_cannot_be_followed_stays_and_is_named() -> None:
    start = keras.Input((8, 4))
    x = layers.Dense(6, name="before")(start)
    x = layers.Permute((2, 1), name="turn")(x)
    model = keras.Model(start, layers.Dense(3)(layers.Dense(10, name="after")(layers.Flatten()(x))))
    assert len(left_alone(model)) == 1
    assert "'turn' (Permute)" in left_alone(model)[0]
    small = width(model, 0.5)
    assert (small.get_layer("before").units, small.get_layer("after").units) == (6, 5)


def test_subclassed_models_are_refused_by_name() -> None:
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(InvalidInput, match="Own.*subclassed"):
        width(Own(), 0.5)


def test_quantizing_warns_of_no_layer_that_has_nothing_to_quantize() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        quantize(keras.Sequential([keras.Input((64,)), layers.Dense(32), layers.ReLU(), layers.Dense(10)]), "int8")
    assert not [warning for warning in found if "quantize" in str(warning.message)]


def test_quantize_says_what_keras_skips(tmp_path: Path) -> None:
    convs = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.GlobalAveragePooling2D()])
    with pytest.raises(InvalidInput, match=r"only Dense.*\.tflite"):
        quantize(convs, "int8")
    with pytest.raises(InvalidInput, match="float16, int8"):
        quantize(convs, "int8-static")
    dense = keras.Sequential([keras.Input((64,)), layers.Dense(256), layers.Dense(10)])
    x = RNG.random((4, 64)).astype(np.float32)
    sizes = {}
    for mode in (None, "float16", "int8"):
        small = dense if mode is None else quantize(dense, mode)
        sizes[mode] = save_model(small, tmp_path / f"{mode}.keras").stat().st_size
        again = keras.models.load_model(tmp_path / f"{mode}.keras")
        np.testing.assert_allclose(outputs(again, x), outputs(dense, x), atol=0.25)
    assert sizes[None] > sizes["float16"] > sizes["int8"]
    with pytest.raises(InvalidInput, match="already quantized"):
        width(quantize(dense, "int8"), 0.5)


def test_a_damaged_keras_file_gets_a_clear_error(tmp_path: Path) -> None:
    path = save_model(keras.Sequential([keras.Input((3,)), layers.Dense(2)]), tmp_path / "m.keras")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadData, match=r"m\.keras: not a Keras model, or one that was cut short"):
        open_model(path)


def test_a_model_knows_how_it_ends() -> None:
    framework = framework_of(residual())
    assert framework.endings(residual()) == {"": "softmax"}
    assert framework.endings(keras.Sequential([keras.Input((3,)), layers.Dense(1, activation="sigmoid")])) == {
        "": "sigmoid"
    }
    assert framework.endings(keras.Sequential([keras.Input((3,)), layers.Dense(2)])) == {"": "linear"}

"""Keras: bidirectional units, fine-tuning on int8 weights, pruning inside fit, and what Keras cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from penstock.compress import Fit, Pruner, Schedule, left_alone, quantize, remove_channels, save_model, width  # noqa: E402
from penstock.compress.framework import framework_of  # noqa: E402
from penstock.compress.quantize import quantized  # noqa: E402
from penstock.compress.train import fine_tune  # noqa: E402
from penstock.core.errors import InvalidInput  # noqa: E402

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(256, 12)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)
DATA = [(X[i : i + 64], Y[i : i + 64]) for i in range(0, 256, 64)]


def mlp() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((12,)), layers.Dense(64, activation="relu"), layers.Dense(2)])


def outputs(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(x, training=False)))


@pytest.mark.parametrize("merge", ["concat", "sum"])
def test_bidirectional_layers_lose_units_in_both_directions(merge: str) -> None:
    start = keras.Input((5, 4))
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True), merge_mode=merge, name="both")(start)
    model = keras.Model(start, layers.Dense(2)(layers.GRU(6)(x)))
    x = RNG.random((3, 5, 4)).astype(np.float32)
    assert left_alone(model) == []
    np.testing.assert_allclose(outputs(width(model, 1.0), x), outputs(model, x), atol=1e-6)
    small = width(model, 0.5)
    both = small.get_layer("both")
    assert (both.forward_layer.units, both.backward_layer.units) == (4, 4)
    assert outputs(small, x).shape == (3, 2)


def test_removing_dead_heads_changes_nothing() -> None:
    keras.utils.set_random_seed(0)
    start = keras.Input((5, 6))
    x = layers.Dense(12, name="into")(start)
    heads = layers.MultiHeadAttention(4, 3, name="heads")
    model = keras.Model(start, layers.Dense(2)(x + heads(x, x)))
    for dense in (heads.query_dense, heads.key_dense, heads.value_dense):  # heads 1 and 3 see and say nothing
        for weight in dense.weights:
            values = np.array(keras.ops.convert_to_numpy(weight))
            values[..., [1, 3], :] = 0
            weight.assign(values)
    into = np.array(keras.ops.convert_to_numpy(model.get_layer("into").kernel))
    into[:, :6] = 0  # half of the stream is dead as well
    model.get_layer("into").kernel.assign(into)
    out = np.array(keras.ops.convert_to_numpy(heads.output_dense.kernel))
    out[..., :6] = 0
    heads.output_dense.kernel.assign(out)
    x = RNG.random((3, 5, 6)).astype(np.float32)
    small = remove_channels(model, 0.5)
    assert (small.get_layer("heads").num_heads, small.get_layer("into").units) == (2, 6)
    np.testing.assert_allclose(outputs(small, x), outputs(model, x), atol=1e-5)


def test_training_on_int8_weights_mends_them_and_the_file_is_plain(tmp_path: Path) -> None:
    model = mlp()
    fine_tune(framework_of(model), model, DATA, Fit(2, 3e-3))
    framework = framework_of(model)

    def loss(one: keras.Model) -> float:
        return float(np.mean(keras.ops.sparse_categorical_crossentropy(Y, framework.predict(one, X), from_logits=True)))

    small, notes = quantized(model, "int8", calibration=DATA, fit=Fit(8, 1e-2))
    assert any("LoRA" in note for note in notes)
    assert loss(small) < 0.95 * loss(quantize(model, "int8"))  # it went on learning with int8 weights
    assert small.layers[0].quantization_mode == "int8"
    assert not getattr(small.layers[0], "lora_enabled", False)
    plain = save_model(quantize(model, "int8"), tmp_path / "plain.keras").stat().st_size
    path = save_model(small, tmp_path / "small.keras")
    assert path.stat().st_size < 1.05 * plain
    np.testing.assert_allclose(outputs(keras.models.load_model(path), X), outputs(small, X), atol=1e-4)


def test_what_keras_cannot_do_is_said() -> None:
    with pytest.raises(InvalidInput, match="only as int8"):
        quantize(mlp(), "int4", calibration=DATA, fit=Fit(1))
    with pytest.raises(InvalidInput, match="needs data"):
        quantize(mlp(), "int8", fit=Fit(1))
    _, notes = quantized(mlp(), "float8")
    assert any("does not shrink" in note for note in notes)
    convs = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(32, 3), layers.Flatten(), layers.Dense(2)])
    _, notes = quantized(convs, "int4")
    assert any("Keras skips them" in note and ".tflite" in note for note in notes)


def test_pruning_inside_fit_survives_a_checkpoint(tmp_path: Path) -> None:
    def run(first: int, second: int) -> keras.Model:
        model = mlp()
        pruner = Pruner(model, Schedule(0.75, 0, 12, 2))
        for number, epochs in enumerate((first, second)):
            if number and epochs:  # another process: the model from its file, the masks from theirs
                model.save(tmp_path / "model.keras")
                model = keras.models.load_model(tmp_path / "model.keras")
                pruner = Pruner.resume(model, tmp_path / "masks.npz")
                assert pruner.steps == first * 4
            model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            model.fit(X, Y, batch_size=64, epochs=epochs, shuffle=False, verbose=0,
                      callbacks=[pruner.callback(tmp_path / "masks.npz")])  # fmt: skip
        zeros = pruner.strip()
        assert all(abs(share - 0.75) < 0.01 for share in zeros.values())
        return model

    whole, resumed = run(4, 0), run(2, 2)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_n_m_groups_of_attention_lie_along_its_inputs() -> None:
    start = keras.Input((5, 8))
    model = keras.Model(start, layers.MultiHeadAttention(2, 4, name="heads")(start, start))
    kernels = {kernel.name.split("/")[-2]: kernel for kernel in framework_of(model).kernels(model)}
    assert (kernels["query"].axis, kernels["attention_output"].axis) == (0, 1)
    pruner = Pruner(model, Schedule(0.0), n_m=(2, 4))
    pruner.step()
    kept = np.moveaxis(kernels["query"].read() != 0, 0, -1).reshape(-1, 4).sum(1)
    assert (kept == 2).all()
    pruner.strip()

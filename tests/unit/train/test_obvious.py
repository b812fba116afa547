"""When a run begins without a forecast."""

from __future__ import annotations

import pytest

from penstock.train.config import Config
from penstock.train.keras.obvious import FRAMEWORK_NBYTES, count, obvious_nbytes
from penstock.train.recipe import InputSpec

CASES = [
    ("auto", {"numbers": InputSpec((40,), "float32")}, 2),
    ("auto", {"image": InputSpec((128, 128, 3), "uint8")}, 10),
    ("auto", {"image": InputSpec((28, 28, 1), "uint8")}, 10),
    ("auto", {"image": InputSpec((96, 160, 3), "float32")}, 10),
    ("mlp", {"image": InputSpec((32, 32, 3), "uint8")}, 5),
    ("auto", {"text": InputSpec((120,), "int32", (5000,))}, 3),
    ("auto", {"numbers": InputSpec((7,), "float32"), "categories": InputSpec((2,), "int32", (9, 300))}, 1),
]


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
def test_the_count_is_no_less_than_the_model_has(name, inputs, outputs):
    keras = pytest.importorskip("keras")
    from penstock.train.keras.models import small_model

    model = small_model(name, inputs, outputs)
    counted = count(name, inputs, outputs)
    assert counted.weights >= model.count_params()
    shapes = [layer.output.shape[1:] for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    held = sum(_product(shape) for shape in shapes)
    assert counted.activations >= 0.5 * held and counted.weights <= 4 * model.count_params() + 300_000


def _product(shape):
    found = 1
    for side in shape:
        found *= side
    return found


@pytest.mark.parametrize("backend", sorted(FRAMEWORK_NBYTES))
def test_small_models_are_obvious_and_large_batches_are_not(backend):
    table = {"numbers": InputSpec((40,), "float32")}
    config = Config(data="x.csv", backend=backend, batch=256)
    assert obvious_nbytes(config, table, 2, 8_000_000_000) is not None
    assert obvious_nbytes(config, table, 2, int(0.8 * FRAMEWORK_NBYTES[backend])) is None
    tight = FRAMEWORK_NBYTES[backend] - 1
    assert obvious_nbytes(config, table, 2, tight) is not None, "parts of a small batch would save nothing"
    assert obvious_nbytes(config, {"image": InputSpec((128, 128, 3), "uint8")}, 10, tight) is None
    huge = Config(data="x", backend=backend, batch=100_000)
    assert obvious_nbytes(huge, {"image": InputSpec((128, 128, 3), "uint8")}, 10, 8_000_000_000) is None


def test_the_models_of_users_are_tried():
    config = Config(data="x.csv", model="net.py:build")
    assert obvious_nbytes(config, {"numbers": InputSpec((4,), "float32")}, 2, 1 << 40) is None

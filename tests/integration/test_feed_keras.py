"""model.fit(ds.keras()) on each backend: every sample exactly once per epoch, a new order each, validation too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import gc, threading, warnings
import numpy as np
import keras
from penstock.core.errors import InvalidInput
from penstock.read.arrays import from_tensor_slices

BIG = 64

class Seen(keras.metrics.Metric):
    '''Counts how often each sample came, and a number that tells one order from another.'''
    def __init__(self):
        super().__init__(name="seen")
        self.times = self.add_weight(shape=(BIG,), initializer="zeros", name="times")
        self.order = self.add_weight(shape=(), initializer="zeros", name="order")
        self.steps = self.add_weight(shape=(), initializer="zeros", name="steps")
    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
        self.times.assign(self.times + keras.ops.sum(keras.ops.one_hot(ids, BIG), axis=0))
        mean = keras.ops.mean(keras.ops.cast(ids, "float32"))
        # Depends on the data: TensorFlow runs the rest of a step even if there was no batch left for it.
        self.steps.assign(self.steps + keras.ops.cast(mean >= 0, "float32"))
        self.order.assign(self.order + keras.ops.cast(self.steps, "float32") * mean)
    def result(self):
        return {"least": keras.ops.min(self.times[:N]), "most": keras.ops.max(self.times),
                "steps": self.steps + 0, "order": self.order + 0}

def model():
    made = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse", metrics=[Seen()])
    return made

def data(n, size, seed):
    x = np.arange(n * 12, dtype=np.uint8).reshape(n, 2, 2, 3)
    return from_tensor_slices((x, np.arange(n, dtype=np.float32))).shuffle(seed=seed).batch(size)

def check(history, steps, prefix=""):
    got = {k: history.history[prefix + k] for k in ("least", "most", "steps", "order")}
    assert got["least"] == got["most"] == [1.0] * len(got["steps"]), (prefix, got)
    assert got["steps"] == [steps] * len(got["steps"]), (prefix, got)
    return got["order"]

N = BIG
train, val = data(N, 10, 1), data(N, 9, 2)
class Steps(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.known = self.params["steps"]
told = Steps()
with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    done = model().fit(train.keras(), epochs=3, validation_data=val.keras(), verbose=0, callbacks=[told])
assert told.known == 7
orders = check(done, 7)
assert len(set(orders)) == 3, orders
assert len(set(check(done, 8, "val_"))) == 3
if keras.backend.backend() != "tensorflow":
    # The look at the first batch, to build the model, has not cost an epoch.
    expected = [sum((i + 1) * float(np.mean(y)) for i, (_, y) in enumerate(train.at_epoch(e))) for e in range(3)]
    assert np.allclose(orders, expected, rtol=1e-4), (orders, expected)

# One batch an epoch, and a model that is built already.
one, again = data(N, N, 3).map(lambda x, y: (x[:, :1], y)), model()
again.build((None, 1, 2, 3))
done = again.fit(one.keras(), epochs=2, verbose=0)
check(done, 1)

# A length that only reading tells.
unknown = data(N, 10, 1).unbatch().filter(lambda x, y: y >= 0).batch(10)
assert unknown.cardinality is None
done = model().fit(unknown.keras(), epochs=3, validation_data=unknown.keras(), verbose=0)
check(done, 7)
check(done, 7, "val_")

# Weights of classes reach the loss; a class without one weighs 1.
m = model()
m.build((None, 2, 2, 3))
losses = [m.evaluate(data(N, 10, 1).keras(class_weight=w), verbose=0, return_dict=True)["loss"]
          for w in (None, {i: 2.0 for i in range(BIG)}, {7: 0.0, 9: 1.0})]
assert np.isclose(2 * losses[0], losses[1], rtol=1e-3) and losses[2] != losses[0], losses
assert m.predict(val.keras(), verbose=0).shape == (N, 1)
assert m.evaluate(val.keras(), verbose=0, return_dict=True)["least"] == 1.0
try:
    train.unbatch().keras()
except InvalidInput:
    pass
else:
    raise AssertionError("samples were taken for batches")

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True
m = model()
m.fit(train.keras(), epochs=3, verbose=0, callbacks=[Stop()])
del m, again, done
gc.collect()
assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []
print("all well")
"""


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_every_sample_once_an_epoch(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all well" in done.stdout

"""Every way of shrinking on the three Keras backends, in processes of their own, and files that plain Keras opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")

SCRIPT = """
import json, sys
import keras, numpy as np
from sklearn.datasets import load_digits
from penstock.compress import Fit, Pruner, Schedule, distill, prune, quantize, remove_channels, save_model, width
from penstock.compress.framework import framework_of
from penstock.compress.result.score import score
from penstock.compress.train import fine_tune

folder = sys.argv[1]
keras.utils.set_random_seed(3)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
train = [(x[i:i + 128], y[i:i + 128]) for i in range(0, 1280, 128)]
test = [(x[1280:], y[1280:])]
layers = keras.layers
start = keras.Input((8, 8, 1))
h = layers.Conv2D(8, 3, padding="same", activation="relu")(start)
h = layers.Add()([h, layers.Conv2D(8, 3, padding="same", activation="relu")(h)])
h = layers.Dense(48, activation="relu")(layers.Flatten()(h))
model = keras.Model(start, layers.Dense(10, activation="softmax")(h))
framework = framework_of(model)
judge = lambda m: score(lambda b: framework.predict(m, b), test).value
fine_tune(framework, model, train, Fit(8, 3e-3))
result = {"backend": keras.backend.backend(), "model": judge(model)}
half = remove_channels(model, 0.5)
fine_tune(framework, half, train, Fit(4, 3e-3))
result["half"] = judge(half)
result["parameters"] = [model.count_params(), half.count_params()]
thin = prune(model, train, 0.6, fit=Fit(2, 3e-3))
result["thin"] = judge(thin)
result["zeros"] = list(Pruner(thin, Schedule(0.5)).sparsity().values())
student = width(model, 0.5, init="fresh")
losses = distill(model, student, train, temperature=2.0, alpha=0.7, fit=Fit(4, 3e-3))
result["losses"], result["student"] = losses, judge(student)
small = quantize(model, "int8")
result["int8"] = judge(small)
tuned = quantize(model, "int8", calibration=train, fit=Fit(1, 1e-3))
result["lora"] = judge(tuned)
# Pruning inside Keras' own loop, whose weights JAX holds elsewhere until asked.
inside = width(model, 1.0)
inside.compile("adam", "sparse_categorical_crossentropy")
pruner = Pruner(inside, Schedule(0.5, 0, 8, 2))
inside.fit(x[:1280], y[:1280], batch_size=128, epochs=1, verbose=0, callbacks=[pruner.callback(f"{folder}/masks.npz")])
result["inside"] = list(pruner.sparsity().values())
result["resumed"] = Pruner.resume(inside, f"{folder}/masks.npz").steps
# Two inputs, attention, two outputs with a loss each.
a, b = keras.Input((8, 8), name="along"), keras.Input((8, 8), name="across")
h = layers.Add()([layers.Dense(16)(a), layers.Dense(16)(b)])
h = layers.GlobalAveragePooling1D()(layers.Add()([h, layers.MultiHeadAttention(4, 4, name="heads")(h, h)]))
ends = {"digit": layers.Dense(10, name="digit")(h), "odd": layers.Dense(1, activation="sigmoid", name="odd")(h)}
two = keras.Model([a, b], ends)
both = [((p[..., 0], p[..., 0].transpose(0, 2, 1)), {"digit": q, "odd": q % 2}) for p, q in train]
fine_tune(framework, two, both, Fit(6, 1e-2))
pupil = width(two, 0.5)
result["heads"] = pupil.get_layer("heads").num_heads
distill(two, pupil, both, fit=Fit(4, 1e-2))
parts = score(lambda z: framework.predict(pupil, z), both).parts
result["parts"] = {name: part.value for name, part in parts.items()}
for name, made in {"half": half, "thin": thin, "student": student, "int8": small, "lora": tuned}.items():
    save_model(made, f"{folder}/{name}.keras")
    np.save(f"{folder}/{name}.npy", framework.predict(made, x[:16]))
np.save(f"{folder}/x.npy", x[:16])
print(json.dumps(result))
"""

PLAIN = """
import sys
import keras, numpy as np
x = np.load(sys.argv[1] + "/x.npy")
for name in ("half", "thin", "student", "int8", "lora"):
    made = keras.models.load_model(f"{sys.argv[1]}/{name}.keras").predict(x, verbose=0)
    np.testing.assert_allclose(made, np.load(f"{sys.argv[1]}/{name}.npy"), atol=1e-3)
assert "penstock" not in sys.modules
"""


def run(script: str, folder: Path, backend: str, **env: str) -> str:
    surroundings = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **env}
    # Models of a few thousand weights run no faster for what XLA spends on optimizing each of them.
    surroundings["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(folder)], env=surroundings, capture_output=True, text=True,
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_all_ways_and_plain_files(backend: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    result = json.loads(run(SCRIPT, tmp_path, backend, PYTHONPATH=root).splitlines()[-1])
    assert result["backend"] == backend
    assert result["model"] > 0.85
    assert result["half"] > 0.8
    assert result["parameters"][1] < 0.4 * result["parameters"][0]
    assert result["thin"] > 0.8
    assert all(abs(share - 0.6) < 0.02 for share in result["zeros"])
    assert result["losses"][-1] < result["losses"][0]
    assert result["student"] > 0.7
    assert result["int8"] > result["model"] - 0.02
    assert result["lora"] > result["model"] - 0.03
    assert all(abs(share - 0.5) < 0.02 for share in result["inside"])
    assert result["resumed"] == 10
    assert result["heads"] == 2
    assert result["parts"]["digit"] > 0.3
    assert result["parts"]["odd"] > 0.6
    run(PLAIN, tmp_path, backend, PYTHONPATH="")

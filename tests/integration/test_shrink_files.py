"""Every kind of file that the command writes, opened by its own runtime in a process that cannot import penstock.

Models have two inputs and two outputs of different widths, so a runtime that reorders them is noticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.shrink.command import shrink as command
from penstock.compress import export_lite, export_onnx, quantize, save_model
from penstock.compress.child.runtimes import runner
from penstock.compress.framework import framework_of

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "penstock":
            raise ImportError("penstock is blocked here")
sys.meta_path.insert(0, Blocker())
import numpy as np
a, b = np.load("a.npy")[:5], np.load("b.npy")[:5]
def show(path):
    if path.endswith(".keras"):
        import keras
        return [np.asarray(part) for part in keras.models.load_model(path).predict([a, b], verbose=0)]
    if path.endswith(".onnx"):
        import onnxruntime
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(None, dict(zip([i.name for i in session.get_inputs()], [a, b])))
    if path.endswith(".tflite"):
        import tensorflow as tf
        runner = tf.lite.Interpreter(path).get_signature_runner()
        made = runner(wide=a, narrow=b)
        return [made[name] for name in sorted(made)]
    import torch
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    made = torch.export.load(path).module()(x, y) if path.endswith(".pt2") else torch.jit.load(path)(x, y)
    return [part.detach().numpy() for part in made]
for path in sys.argv[1:]:
    kind, age = show(path)
    assert kind.shape == (5, 3) and age.shape == (5, 1), (path, kind.shape, age.shape)
    np.save(path + ".npy", np.concatenate([kind, age], 1))
try:
    import penstock
except ImportError:
    print("blocked")
"""

KERAS_NET = """
import keras
def build():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    a, b = keras.Input((6,), name="wide"), keras.Input((2,), name="narrow")
    x = layers.Dense(96, activation="relu")(layers.Concatenate()([a, b]))
    x = layers.Dense(96, activation="relu")(x)
    return keras.Model([a, b], [layers.Dense(3, activation="softmax", name="kind")(x), layers.Dense(1, name="age")(x)])
"""

TORCH_NET = """
import torch
from torch import nn
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.inner = nn.Linear(8, 384), nn.Linear(384, 384)
        self.kind, self.age = nn.Linear(384, 3), nn.Linear(384, 1)
    def forward(self, a, b):
        x = torch.relu(self.inner(torch.relu(self.trunk(torch.cat([a, b], 1)))))
        return self.kind(x), self.age(x)
def build():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Two()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(640, 6)).astype(np.float32), rng.normal(size=(640, 2)).astype(np.float32)
    kind = (a[:, 0] + b[:, 0] > 0).astype(np.int64) + (a[:, 1] > 0)
    age = (a[:, 2] - b[:, 1])[:, None]
    for name, part in {"train": slice(0, 512), "test": slice(512, 640)}.items():
        arrays = {"x.#0": a[part], "x.#1": b[part], "y.#0": kind[part], "y.#1": age[part]}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    np.save(tmp_path / "a.npy", a[512:])
    np.save(tmp_path / "b.npy", b[512:])
    (tmp_path / "knet.py").write_text(KERAS_NET)
    (tmp_path / "tnet.py").write_text(TORCH_NET)
    return tmp_path


def invoke(folder: Path, model: str, out: str, *options: str, data: bool = True) -> dict:
    """Run the command; returns its report."""
    given = ["--data", f"{folder}/train.npz"] if data else []
    app = typer.Typer()
    app.command()(command)
    arguments = [f"{folder}/{model}", "--out", f"{folder}/{out}", "--held-out", f"{folder}/test.npz", *given]
    result = CliRunner().invoke(app, [*arguments, "--report", f"{folder}/report.json", "--batch", "32", *options])
    assert result.exit_code == 0, result.output
    return json.loads((folder / "report.json").read_text())


def opened_elsewhere(folder: Path, *names: str) -> list[np.ndarray]:
    """What each file gives in a process where importing penstock fails."""
    env = {**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED, *names], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "blocked" in done.stdout
    return [np.load(folder / f"{name}.npy") for name in names]


def scope_of(source: str) -> dict:
    """The names that a source defines."""
    scope: dict = {}
    exec(source, scope)
    return scope


@pytest.mark.timeout(1800)
def test_keras_files_hold_the_same_function(folder: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("onnxruntime")
    model = scope_of(KERAS_NET)["build"]()
    x = (np.load(folder / "a.npy")[:5], np.load(folder / "b.npy")[:5])
    wanted = framework_of(model).predict(model, x)
    assert isinstance(wanted, dict)
    save_model(model, folder / "m.keras")
    export_lite(model, folder / "m.tflite", "float16")
    export_onnx(model, folder / "m.onnx")
    files = ["m.keras", "m.tflite", "m.onnx"]
    if isinstance(model(x)[0], tf.Tensor):
        model.export(str(folder / "saved"), verbose=False)
        files.append("saved")
    for name in files:
        made = runner(folder / name, ["wide", "narrow"], ["kind", "age"])(x)
        assert isinstance(made, dict)
        for output, part in wanted.items():
            np.testing.assert_allclose(made[output], part, atol=0.02, err_msg=f"{name} {output}")
    joined = np.concatenate(list(wanted.values()), 1)
    for made in opened_elsewhere(folder, "m.keras", "m.tflite", "m.onnx"):
        np.testing.assert_allclose(made, joined, atol=0.02)


@pytest.mark.timeout(1800)
def test_torch_files_hold_the_same_function(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    model = scope_of(TORCH_NET)["build"]()
    x = (np.load(folder / "a.npy")[:5], np.load(folder / "b.npy")[:5])
    wanted = framework_of(model).predict(model, x)
    assert isinstance(wanted, dict)
    for name in ("m.pt2", "m.pt"):
        save_model(model, folder / name, x)
    export_onnx(model, folder / "m.onnx", x)
    save_model(quantize(model, "int4"), folder / "int4.pt2", x)
    files = {"m.pt2": 1e-4, "m.pt": 1e-4, "m.onnx": 1e-4, "int4.pt2": 0.3}
    for (name, near), elsewhere in zip(files.items(), opened_elsewhere(folder, *files), strict=True):
        made = runner(folder / name, [], ["0", "1"])(x)
        assert isinstance(made, dict)
        np.testing.assert_allclose(np.concatenate(list(made.values()), 1), elsewhere, atol=1e-4)
        np.testing.assert_allclose(made["0"], wanted["0"], atol=near)
        np.testing.assert_allclose(made["1"], wanted["1"], atol=near)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_keras_to_keras_lite_onnx_and_from_a_saved_model(folder: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("onnxruntime")
    report = invoke(folder, "knet.py:build", "small.keras", "--width", "0.5", "--epochs", "8", "--export", "onnx")
    small, onnx = report["after"]
    assert (small["file"], onnx["file"]) == ("small.keras", "small.onnx")
    assert small["parameters"] < 0.4 * report["before"]["parameters"]
    assert small["training_nbytes"] > 0
    assert set(small["score"]["parts"]) == {"kind", "age"}
    assert small["score"]["parts"]["kind"]["value"] > 0.7
    # The same model in two runtimes, outputs in the right order: the same score.
    assert onnx["score"]["value"] == pytest.approx(small["score"]["value"], abs=0.01)
    lite = invoke(folder, "small.keras", "small.tflite", "--quantize", "int8")["after"][0]
    assert lite["score"]["value"] == pytest.approx(small["score"]["value"], abs=0.05)
    keras_made, onnx_made, lite_made = opened_elsewhere(folder, "small.keras", "small.onnx", "small.tflite")
    np.testing.assert_allclose(onnx_made, keras_made, atol=1e-4)
    np.testing.assert_allclose(lite_made, keras_made, atol=0.25)

    import keras

    if keras.backend.backend() == "tensorflow":
        keras.models.load_model(folder / "small.keras").export(str(folder / "saved"), verbose=False)
        saved = invoke(folder, "saved", "saved.tflite", "--quantize", "float16")
        assert saved["after"][0]["score"]["value"] == pytest.approx(saved["before"]["score"]["value"], abs=0.01)
        (made,) = opened_elsewhere(folder, "saved.tflite")
        np.testing.assert_allclose(made, keras_made, atol=0.02)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_torch_to_program_script_and_onnx(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    report = invoke(folder, "tnet.py:build", "small.pt2", "--width", "0.5", "--epochs", "8", "--export", "onnx")
    small, onnx = report["after"]
    assert small["score"]["parts"]["0"]["value"] > 0.7
    assert onnx["score"]["value"] == pytest.approx(small["score"]["value"], abs=0.01)
    tiny = invoke(folder, "small.pt2", "tiny.pt2", "--quantize", "int4")["after"][0]
    assert tiny["file_nbytes"] < small["file_nbytes"]
    assert tiny["score"]["parts"]["0"]["value"] > 0.6
    program, onnx_made, packed = opened_elsewhere(folder, "small.pt2", "small.onnx", "tiny.pt2")
    np.testing.assert_allclose(onnx_made, program, atol=1e-4)
    np.testing.assert_allclose(packed, program, atol=1.0)

    torch.save(scope_of(TORCH_NET)["build"]().state_dict(), folder / "weights.pt")
    static = invoke(
        folder, "tnet.py:build", "static.pt", "--weights", f"{folder}/weights.pt", "--quantize", "int8-static"
    )
    assert static["after"][0]["file_nbytes"] < static["before"]["file_nbytes"]
    (made,) = opened_elsewhere(folder, "static.pt")
    assert made.shape == (5, 4)

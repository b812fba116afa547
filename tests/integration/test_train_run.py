"""`penstock train` and `penstock predict` as a user calls them, on every backend, with real kills."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.train.supervisor import can_jail
from penstock.watch.run_folder import read_events

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
rng = np.random.default_rng(0)


def penstock(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "penstock", *map(str, words)]
    return subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=850, check=False)


def kinds(out: Path) -> list[str]:
    return [event["kind"] for event in read_events(out)]


def make_table(path: Path, rows: int = 4000) -> list[str]:
    """A table whose label follows from a number and a category; returns the labels."""
    x = rng.normal(size=(rows, 3)).round(3)
    kind = rng.integers(0, 3, rows)
    labels = ["good" if x[i, 0] + (kind[i] == 1) > 0.3 else "bad" for i in range(rows)]
    lines = [f"{x[i, 0]},{x[i, 1] if i % 9 else ''},{x[i, 2]},{'pqr'[kind[i]]},{labels[i]}" for i in range(rows)]
    path.write_text("a,b,c,kind,verdict\n" + "\n".join(lines) + "\n")
    return labels


@pytest.mark.timeout(900)
def test_a_table_with_tensorflow_then_predictions(tmp_path):
    labels = make_table(tmp_path / "t.csv")
    out = tmp_path / "run"
    done = penstock("train", tmp_path / "t.csv", "--target", "verdict", "--batch", 64, "--epochs", 4, "--out", out,
                    "--backend", "tensorflow", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in told] == kinds(out)
    assert {"run.start", "train.prepared", "run.plan", "run.forecast", "train.progress", "memory.sample"} <= set(
        kinds(out)
    )
    assert told[-1]["kind"] in ("run.end", "memory.sample")
    assert {
        "config.json",
        "events.jsonl",
        "checkpoints",
        "model.keras",
        "prepare.json",
        "metrics.json",
        "log.txt",
    } <= set(os.listdir(out))
    raw = tmp_path / "raw.csv"
    raw.write_text("\n".join(line.rpartition(",")[0] for line in (tmp_path / "t.csv").read_text().splitlines()))
    predictions = tmp_path / "p.parquet"
    done = penstock("predict", out, raw, "--out", predictions)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(predictions)
    right = np.mean(np.array(table["prediction"].to_pylist()) == np.array(labels))
    assert len(table) == len(labels) and right > 0.9
    assert np.allclose(np.array(table["probabilities"].to_pylist()).sum(axis=1), 1, atol=1e-5)
    again = penstock("train", tmp_path / "t.csv", "--target", "verdict", "--out", out)
    assert again.returncode == 2 and "holds a run already" in again.stderr


@pytest.mark.timeout(900)
def test_pictures_with_torch_and_a_model_of_ones_own(tmp_path):
    for name, base in (("dark", 40), ("light", 160)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(60):
            pixels = rng.integers(base, base + 60, (18, 18, 3)).astype(np.uint8)
            assert cv2.imwrite(str(tmp_path / "photos" / name / f"{i}.png"), pixels)
    (tmp_path / "net.py").write_text(
        "import keras\n"
        "def build(input_shape, classes):\n"
        "    layers = keras.layers\n"
        "    return keras.Sequential([keras.Input(input_shape), layers.Rescaling(1 / 255), layers.Conv2D(4, 3),\n"
        "        layers.GlobalAveragePooling2D(), layers.Dense(classes)])\n"
    )
    out = tmp_path / "run"
    done = penstock("train", tmp_path / "photos", "--model", f"{tmp_path}/net.py:build", "--batch", 16, "--epochs", 12,
                    "--out", out, "--backend", "torch", "--no-forecast", "--val", 0.2, "--image-size", "12x18",
                    "--learning-rate", 0.05)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 12/12 done" in done.stdout and "penstock predict" in done.stdout
    assert json.loads((out / "metrics.json").read_text())["final"]["val_accuracy"] > 0.9
    done = penstock("predict", out / "model.keras", tmp_path / "photos", "--out", tmp_path / "p.parquet")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    for row in rows[::10]:
        assert row["prediction"] in ("dark", "light") and Path(row["path"]).exists()
    assert load_input_shape(out / "model.keras") == [None, 12, 18, 3]
    small = tmp_path / "elsewhere" / "small.keras"
    done = penstock("shrink", out, "--out", small, "--width", 0.5, "--data", tmp_path / "photos", "--epochs", 0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"next: penstock predict {small}" in done.stdout
    done = penstock("predict", small, tmp_path / "photos", "--out", tmp_path / "q.parquet", "--backend", "torch")
    assert done.returncode == 0, done.stderr
    again = pq.read_table(tmp_path / "q.parquet").to_pylist()
    assert [row["path"] for row in again] == [row["path"] for row in rows]
    assert {row["prediction"] for row in again} <= {"dark", "light"}


def load_input_shape(path: Path) -> list[int | None]:
    """The shape of a Keras model's input, as its file tells it."""
    with zipfile.ZipFile(path) as packed:
        layers = json.loads(packed.read("config.json"))["config"]["layers"]
    shape: list[int | None] = layers[0]["config"]["batch_shape"]
    return shape


TRACK = """
import json, keras
def callbacks(folder):
    def tell(epoch, logs):
        with open(folder / "told.jsonl", "a") as file:
            print(json.dumps([epoch, sorted(logs)]), file=file)
    return keras.callbacks.LambdaCallback(on_epoch_end=tell)
"""


@pytest.mark.timeout(900)
def test_text_with_jax(tmp_path):
    lines = []
    for i in range(1500):
        words = rng.choice(["tree", "house", "river", "stone", "cloud"], 6).tolist()
        words[int(rng.integers(6))] = "lovely" if i % 2 else "dreadful"
        lines.append(json.dumps({"review": " ".join(words), "stars": 5 if i % 2 else 1}))
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    (tmp_path / "track.py").write_text(TRACK)
    out = tmp_path / "run"
    done = penstock("train", tmp_path / "r.jsonl", "--target", "stars", "--model", "text", "--batch", 64, "--epochs", 4,
                    "--out", out, "--backend", "jax", "--no-forecast", "--callbacks",
                    f"{tmp_path}/track.py:callbacks")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in (out / "told.jsonl").read_text().splitlines()]
    assert [epoch for epoch, _ in told] == [0, 1, 2, 3]
    assert told[-1][1] == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert json.loads((out / "metrics.json").read_text())["final"]["val_accuracy"] > 0.95


HUNGRY = """
import keras
def build(input_shape, classes):
    wide = keras.layers.Dense(32000, activation="relu")
    model = keras.Sequential([keras.Input(input_shape), wide, keras.layers.Dense(classes)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_jail(10**9), reason="no memory cgroup can be made here")
def test_a_killed_worker_goes_on_by_itself_with_smaller_parts(tmp_path):
    """The kernel kills, the parent says so and goes on.

    One array of activations is 512 MB, and the backward pass holds three: above the limit on any processor, however
    much or little the framework itself takes there.
    """
    x = rng.normal(size=(9000, 4)).round(3)
    lines = [",".join(map(str, [*row, int(row[0] > 0)])) for row in x]
    (tmp_path / "t.csv").write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")
    (tmp_path / "net.py").write_text(HUNGRY)
    out = tmp_path / "run"
    done = penstock("train", tmp_path / "t.csv", "--model", f"{tmp_path}/net.py:build",
                    "--batch", 4000, "--epochs", 1, "--memory", "1200MB", "--out", out,
                    "--backend", "torch", "--no-forecast", "--val", 0)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    deaths = [event for event in read_events(out) if event["kind"] == "run.death"]
    assert deaths and deaths[0]["signal"] == "SIGKILL"
    assert "The training process died" in done.stdout
    last = [event for event in read_events(out) if event["kind"] == "train.progress"][-1]
    ended = [event for event in read_events(out) if event["kind"] == "train.end"][-1]
    assert last["micro"] < 4000 and ended["total_steps"] == 3


def test_mistakes_are_sentences(tmp_path):
    make_table(tmp_path / "t.csv", 100)
    done = penstock("train", tmp_path / "t.csv", "--out", tmp_path / "run")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())  # as wide as the terminal
    assert "which column is to be learned" in said and "a, b, c, kind, verdict" in said
    assert "Traceback" not in done.stderr + done.stdout
    for words, message in (
        ([tmp_path / "t.csv", "--precision", "tiny"], "--precision must be one of"),
        ([tmp_path / "t.csv", "--model", "nothing.py:build"], "nothing.py"),
        (["--resume"], "--resume needs --out"),
        ([], "Give the data"),
    ):
        done = penstock("train", *words)
        assert done.returncode in (1, 2) and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    done = penstock("predict", tmp_path / "run", tmp_path / "t.csv")
    assert done.returncode == 1 and "There is no model" in done.stderr


ALONE = """
import sys
from pathlib import Path
from penstock.train.config import Config
from penstock.train.keras.job import _make_repeatable, _share_cores, save_model
import keras, numpy
from penstock.guard.keras.private import tensorflow_left_out
config = Config(data="", backend=sys.argv[1])
first = []
for _ in range(2):
    _make_repeatable(keras, config)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    first.append(model.get_weights()[0])
assert numpy.array_equal(*first), "the seed does not fix the weights"
with tensorflow_left_out():
    save_model(model, Path(sys.argv[2]) / "model.keras")
assert "tensorflow" not in sys.modules, "TensorFlow was loaded for another backend"
if config.backend == "torch":
    import os, torch
    whole = torch.get_num_threads()
    _share_cores(Config(data="", backend="torch", model="net.py:build"))
    assert torch.get_num_threads() == whole, "a model of one's own may need all cores"
    _share_cores(config)
    assert torch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 2)
again = keras.saving.load_model(Path(sys.argv[2]) / "model.keras")
assert numpy.array_equal(again.get_weights()[0], first[1])
"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_train_and_save_without_loading_tensorflow(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    argv = [sys.executable, "-c", ALONE, backend, str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(argv, env={**env, "KERAS_BACKEND": backend}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]

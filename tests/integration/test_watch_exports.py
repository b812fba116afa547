"""Exports read back by those they are for; the report command; a recorded run of a real training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from importlib.util import find_spec

import pytest

from penstock.sources.tfrecord.write import frame
from penstock.watch.export.tensorboard import export_scalars
from tests.unit.watch.runs import training, write_run


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture
def accumulator(monkeypatch):
    """TensorBoard's own reader; its own stand-in for TensorFlow saves the time of loading that."""
    pytest.importorskip("tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator


def test_tensorboard_reads_every_scalar(tmp_path, accumulator):
    run = write_run(tmp_path / "run", training(100))
    export_scalars(run, tmp_path / "tb", frame)
    read = accumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0})
    read.Reload()
    tags = set(read.Tags()["scalars"])
    assert {"train/loss", "epoch/validation/accuracy", "run/samples_per_s", "memory/holders/optimizer"} <= tags
    losses = [event["logs"]["loss"] for event in training(100) if event["kind"] == "train.progress"]
    found = read.Scalars("train/loss")
    assert [scalar.step for scalar in found] == list(range(1, 101))
    assert [scalar.value for scalar in found] == pytest.approx(losses, rel=1e-6)
    assert len(read.Scalars("epoch/validation/loss")) == 10
    assert read.Scalars("memory/limit")[0].value == 2e9


def test_the_report_command(tmp_path):
    run = write_run(tmp_path / "mnist", training(100))
    done = penstock("report", str(tmp_path), "--tensorboard", str(tmp_path / "tb"), COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout and "What limited this run" in done.stdout and "report.html" in done.stdout
    assert (run / "report.html").stat().st_size < 1_000_000 and len(list((tmp_path / "tb").iterdir())) == 1


def test_the_report_command_says_what_is_wrong(tmp_path):
    done = penstock("report", str(tmp_path / "none"))
    assert done.returncode == 1 and "no run folder" in done.stderr and "Traceback" not in done.stderr


TRAIN = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np, penstock as ps
rng = np.random.default_rng(0)
x = rng.standard_normal((2000, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
ds = ps.from_tensor_slices((x, y)).shuffle(seed=1).batch(50)
with ps.record(sys.argv[1], config={"batch": 50}):
    ps.fit(model, ds, epochs=3, validation_data=ds)
"""


@pytest.mark.skipif(not (find_spec("keras") and find_spec("jax")), reason="Keras or JAX is not installed")
def test_a_real_training_is_recorded_and_reported(tmp_path):
    done = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = json.loads(penstock("report", str(tmp_path / "run"), "--json").stdout)
    facts, story = data["facts"], data["story"]
    assert facts["status"] == "finished" and facts["epoch"] == 2 and facts["peak_nbytes"] > 50_000_000
    assert len(story["epochs"]) == 3 and {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(
        story["epochs"][2]["logs"]
    )
    assert facts["limit_nbytes"] > 0 and ["batch", "50"] in story["config"]
    assert any(name == "packages.keras" for name, _ in story["environment"])
    assert data["series"]["metric:loss"]["v"] and data["memory"]["used"]

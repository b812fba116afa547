"""The command from start to end: files written, measured in child processes, and opened by their own runtimes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from penstock.cli.shrink.command import shrink as command
from penstock.compress import open_model, save_model, shrink
from penstock.compress.child.probe import measure
from penstock.compress.child.process import ChildFailed, run_child
from penstock.compress.child.spill import Spilled
from penstock.core.sizes import size

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )
"""

LITE = """
import sys
import keras, numpy as np, tensorflow as tf
from penstock.compress import export_lite
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(32, 3),
                          keras.layers.Flatten(), keras.layers.Dense(64), keras.layers.Dense(10)])
x = np.load(sys.argv[1] + "/x.npy").reshape(-1, 8, 8, 1)
model.save(sys.argv[1] + "/model.keras")
rows = [(x[:32], np.zeros(32, "int64"))]
export_lite(model, sys.argv[1] + "/model.tflite", "int8", calibration=rows, calibration_rows=20)
runtime = tf.lite.Interpreter(sys.argv[1] + "/model.tflite")
runtime.allocate_tensors()
exact = np.asarray(keras.ops.convert_to_numpy(model(x[:1])))
runtime.set_tensor(runtime.get_input_details()[0]["index"], x[:1])
runtime.invoke()
near = runtime.get_tensor(runtime.get_output_details()[0]["index"])
assert np.abs(near - exact).max() < 0.1 * np.abs(exact).max() + 0.02, (near, exact)
kinds = {str(np.dtype(d["dtype"])) for d in runtime.get_tensor_details() if "conv" in d["name"].lower()}
assert "int8" in kinds, kinds
"""


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    np.savez(tmp_path / "train.npz", x=x[:1280], y=y[:1280])
    np.savez(tmp_path / "test.npz", x=x[1280:], y=y[1280:])
    np.savez(tmp_path / "few.npz", x=x[:64], y=y[:64])
    np.save(tmp_path / "x.npy", x[:64])
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def invoke(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.timeout(1800)
def test_a_torch_module_shrinks_by_command_and_plain_torch_opens_it(digits: Path) -> None:
    code, text = invoke(
        f"{digits}/net.py:build", "--out", f"{digits}/small.pt2", "--data", f"{digits}/train.npz", "--held-out",
        f"{digits}/test.npz", "--prune", "0.5", "--structured", "--distill", "--alpha", "0.1", "--epochs", "4",
        "--quantize", "int8", "--report", f"{digits}/report.json",
    )  # fmt: skip
    assert code == 0, text
    report = json.loads((digits / "report.json").read_text())
    before, after = report["before"], report["after"][0]
    assert before["parameters"] > 3 * after["parameters"]
    assert before["file_nbytes"] > 3.5 * after["file_nbytes"]
    assert before["training_nbytes"] > 0
    assert after["latency_ms"] > 0
    assert after["score"]["rows"] == 517
    assert after["score"]["value"] > 0.5
    plain = "import sys, torch; assert torch.export.load(sys.argv[1]).module()(torch.zeros(3, 1, 8, 8)).ndim == 2"
    env = {**os.environ, "PYTHONPATH": ""}
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", plain, f"{digits}/small.pt2"], env=env).returncode == 0


@pytest.mark.timeout(1800)
def test_lite_files_hold_int8_convolutions_that_the_interpreter_runs(digits: Path) -> None:
    pytest.importorskip("tensorflow")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LITE, str(digits)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (digits / "model.keras").stat().st_size > 3 * (digits / "model.tflite").stat().st_size


@pytest.mark.timeout(1800)
def test_a_search_meets_its_size_and_shows_its_frontier(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.compress.search.WIDTHS", (1.0, 0.5))  # two of the six, to save children
    code, text = invoke(
        f"{digits}/net.py:build", "--out", f"{digits}/small.pt2", "--data", f"{digits}/train.npz", "--held-out",
        f"{digits}/test.npz", "--to", "120KB", "--epochs", "2", "--time-limit", "3000", "--report",
        f"{digits}/report.json",
    )  # fmt: skip
    assert code == 0, text
    report = json.loads((digits / "report.json").read_text())
    assert (digits / "small.pt2").stat().st_size == report["after"][0]["file_nbytes"] <= 120_000
    scored = [t for t in report["trials"] if t["meets"]]
    assert report["after"][0]["score"]["value"] == max(t["facts"]["score"]["value"] for t in scored)
    assert "target 120 KB" in (digits / "small.frontier.svg").read_text()


@pytest.mark.timeout(1800)
def test_a_search_meets_a_peak_that_another_process_measures_too(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nn = pytest.importorskip("torch").nn
    monkeypatch.setattr("penstock.compress.search.WIDTHS", (1.0, 0.25))  # two of the six, to save children
    model = nn.Sequential(
        nn.Upsample(scale_factor=8), nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    with np.load(digits / "few.npz") as few:
        rows = [(few["x"], few["y"])]
    # What a convolution's scratch takes differs between processors, so the target is a share of what is measured here.
    held_out = Spilled.write(rows, digits / "again")
    whole = measure(save_model(model, digits / "whole.pt2", rows[0][0]), held_out).inference_nbytes or 0
    target = int(whole * 0.6)
    result = shrink(model, out=digits / "small.pt2", data=rows, held_out=rows, peak=target, epochs=1, time_limit_s=3000)
    assert (result.after[0].inference_nbytes or 10**9) <= target
    assert result.recipe.width == 0.25
    again = measure(digits / "small.pt2", held_out)
    assert (again.inference_nbytes or 10**9) <= target * 1.25  # once more, in a process of its own
    picture = (digits / "small.frontier.svg").read_text()
    assert f"target {size(target)}" in picture
    assert "peak memory of inference" in picture
    assert "meets the target" in str(result)
    assert "without its weights the peak is still" in str(result)


@pytest.mark.timeout(1800)
def test_a_target_that_cannot_be_met_ends_with_a_verdict(digits: Path) -> None:
    code, text = invoke(
        f"{digits}/net.py:build", "--out", f"{digits}/small.pt2", "--data", f"{digits}/few.npz", "--held-out",
        f"{digits}/few.npz", "--to", "1KB",
    )  # fmt: skip
    assert code == 1
    assert "No combination gets down to a file of 1 KB" in text
    assert text.count("its weights alone are") >= 24
    assert not (digits / "small.pt2").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--out", "small.keras"], "torch model is written to .pt2"),
        (["--out", "small.pt2"], "needs data or held_out"),
        (["--out", "small.pt2", "--width", "2"], "width must be"),
        (["--out", "small.pt2", "--held-out", "HELD", "--export", "tflite"], "made from Keras models"),
        (["--out", "small.pt2", "--held-out", "HELD", "--quantize", "int3"], "torch has no quantization 'int3'"),
        (["--out", "small.pt2", "--held-out", "nothing.npz"], "'nothing.npz' does not exist"),
        (["--out", "small.pt2", "--held-out", "HELD", "--distill"], "need data"),
        (["--out", "small.pt2", "--held-out", "HELD", "--to", "1MB"], "A search compares"),
    ],
)
def test_requests_that_cannot_work_are_refused_before_training(digits: Path, wrong: list[str], said: str) -> None:
    wrong = [str(digits / "test.npz") if part == "HELD" else part for part in wrong]
    code, text = invoke(f"{digits}/net.py:build", *wrong)
    assert code == 2
    assert said in text


def test_every_option_is_explained_with_an_example() -> None:
    app = typer.Typer()
    app.command()(command)
    options = [p for p in typer.main.get_command(app).params if p.name not in ("install_completion", "show_completion")]
    assert len(options) == 24
    for option in options:
        text = str(getattr(option, "help", None))
        shown = any(mark in text for mark in ("e.g.", "E.g.", "--", ".keras", ".npz"))
        assert shown, f"{option.name}: {text}"


@pytest.mark.timeout(1800)
def test_training_of_a_program_that_cannot_be_pickled_is_measured_from_its_file(digits: Path) -> None:
    nn = pytest.importorskip("torch").nn
    with np.load(digits / "few.npz") as few:
        rows = [(few["x"], few["y"])]
    path = save_model(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits / "program.pt2", rows[0][0])
    facts = measure(path, Spilled.write(rows, digits / "held"), model=open_model(path), training=True)
    assert (facts.training_nbytes or 0) > 0
    assert facts.parameters == 650


@pytest.mark.timeout(1800)
def test_a_child_that_fails_says_why(digits: Path) -> None:
    held_out = Spilled.write([(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))], digits / "held")
    (digits / "bad.pt").write_bytes(b"garbage")
    with pytest.raises(ChildFailed, match=r"bad\.pt: not TorchScript"):
        measure(digits / "bad.pt", held_out)
    (digits / "saved").mkdir()
    (digits / "saved" / "saved_model.pb").write_bytes(b"garbage")
    code, text = invoke(f"{digits}/saved", "--out", f"{digits}/small.tflite")
    assert code == 2
    assert "cannot be converted to .tflite" in text
    with pytest.raises(ChildFailed, match=r"ended with code 1.*No module named penstock.compress.no_such_module"):
        run_child("penstock.compress.no_such_module", {}, timeout_s=500)
    with pytest.raises(ChildFailed, match="was stopped after 0 s without an answer"):
        run_child("penstock.compress.child.measure", {}, timeout_s=0.01)

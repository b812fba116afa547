"""kill -9 at any moment, then --resume: the weights of the run that nobody disturbed, to the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from penstock.guard.checkpoint.folder import CheckpointFolder, read
from penstock.watch.run_folder import read_events

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
PENSTOCK = [sys.executable, "-m", "penstock"]
STARTS_S = 500


def make_table(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).round(3)
    kind = rng.integers(0, 3, rows)
    label = x[:, 0] + (kind == 1) + rng.normal(0, 0.3, rows) > 0
    # A float, since whole numbers that number the rows are taken for a key and no feature.
    lines = [
        ",".join([str(float(i)), *map(str, x[i]), "abc"[kind[i]], "yes" if label[i] else "no"]) for i in range(rows)
    ]
    path.write_text("row,a,b,c,d,e,f,kind,label\n" + "\n".join(lines) + "\n")


_started: list[subprocess.Popen[str]] = []


def start(*words: str) -> subprocess.Popen[str]:
    argv = [*PENSTOCK, "train", *words]
    _started.append(subprocess.Popen(argv, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return _started[-1]


@pytest.fixture(autouse=True)
def nothing_left_running():
    """A test that fails must not leave a run behind: its parent ends, and the worker with it."""
    yield
    while _started:
        parent = _started.pop()
        if parent.poll() is None:
            parent.kill()
            parent.communicate()


def options(data: Path, out: Path, backend: str, epochs: int) -> list[str]:
    words = [
        str(data),
        "--batch",
        "64",
        "--epochs",
        str(epochs),
        "--backend",
        backend,
        "--out",
        str(out),
        "--seed",
        "3",
    ]
    return [*words, "--checkpoint-minutes", "0.005", "--no-forecast"]


def kinds(out: Path) -> list[str]:
    return [event["kind"] for event in read_events(out)]


def wait_for(out: Path, kind: str) -> None:
    limit_s = time.monotonic() + STARTS_S
    while kind not in kinds(out):
        assert time.monotonic() < limit_s, f"no {kind} within {STARTS_S} s"
        time.sleep(0.02)


def worker(out: Path, since: int) -> int | None:
    """The process number of the worker that was started after so many starts before."""
    starts = [event for event in read_events(out) if event["kind"] == "run.start"]
    return int(starts[since]["pid"]) if len(starts) > since else None


def kill_both(parent: subprocess.Popen[str], pid: int | None) -> None:
    """Nobody gets the chance to save, or to say anything."""
    parent.send_signal(signal.SIGSTOP)  # it must not start the worker again between the two
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    parent.kill()
    parent.communicate()


def weights(out: Path) -> dict[str, np.ndarray]:
    found = CheckpointFolder(out / "checkpoints").last_good()
    assert found is not None
    return {name: found.array(name) for name in found.entries if name.startswith(("weight/", "optimizer/", "state/"))}


def steps_done(out: Path) -> int:
    return int(read(CheckpointFolder(out / "checkpoints").list()[-1]).meta["total_steps"])


def history(out: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads((out / "metrics.json").read_text())["history"]
    return found


def finish(words: list[str]) -> str:
    parent = start(*words)
    printed, _ = parent.communicate(timeout=1200)
    assert parent.returncode == 0, printed
    return printed


def compare(killed: Path, whole: Path) -> None:
    """Weights, optimizer, metrics and steps are the same to the last bit, and the data was learned once."""
    mine, theirs = weights(killed), weights(whole)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    assert steps_done(killed) == steps_done(whole)
    assert history(killed) == history(whole)
    assert kinds(killed).count("train.prepared") == 1, "a resumed run does not learn the data again"


def check_kills(tmp_path: Path, backend: str, kills: int, rows: int) -> None:
    make_table(tmp_path / "table.csv", rows)
    argv = [sys.executable, str(Path(__file__).with_name("train_kills.py")), str(tmp_path / "table.csv"), str(tmp_path)]
    env = {**ENV, "KERAS_BACKEND": backend}
    done = subprocess.run([*argv, str(kills)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["too_late"] and sum(alive for _, _, alive in found["kills"]) == kills
    compare(tmp_path / "killed", tmp_path / "whole")
    (ledger,) = [array for name, array in weights(tmp_path / "killed").items() if array.shape == (rows,)]
    np.testing.assert_array_equal(ledger, found["epochs"], err_msg="every row once in every epoch")


@pytest.mark.timeout(900)
def test_killed_three_times(tmp_path):
    check_kills(tmp_path, "jax", 3, rows=1500)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_twenty_times(tmp_path):
    check_kills(tmp_path, "tensorflow", 20, rows=3000)


@pytest.mark.timeout(900)
def test_parent_and_worker_killed_then_resumed(tmp_path):
    data, out = tmp_path / "table.csv", tmp_path / "killed"
    make_table(data, 6000)
    parent = start(*options(data, out, "jax", 40))
    wait_for(out, "guard.saved")
    kill_both(parent, worker(out, 0))
    saved = steps_done(out)
    assert not (out / "metrics.json").exists()
    printed = finish(["--resume", "--out", str(out)])
    assert "goes on at epoch" in printed and "DATA" in printed
    begun = [event for event in read_events(out) if event["kind"] == "train.begin"][-1]
    assert begun["resumed"] and begun["epoch"] * 85 + begun["step"] >= saved > 0
    assert steps_done(out) == 40 * 85


@pytest.mark.timeout(900)
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    data, out = tmp_path / "table.csv", tmp_path / "run"
    make_table(data, 20_000)
    parent = start(*options(data, out, "jax", 200))
    wait_for(out, "train.progress")
    pid = worker(out, 0)
    parent.send_signal(signal.SIGINT)
    printed, _ = parent.communicate(timeout=120)
    assert parent.returncode == 130, printed
    assert f"penstock train --resume --out {out}" in printed
    assert CheckpointFolder(out / "checkpoints").list()
    ended = [event for event in read_events(out) if event["kind"] == "run.end"]
    assert ended[-1]["status"] == "interrupted"
    assert pid is not None and not Path(f"/proc/{pid}").exists()

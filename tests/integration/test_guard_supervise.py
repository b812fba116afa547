"""What no process survives: a parent starts the work again, and it ends as if nothing had happened."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.errors import OutOfMemory
from penstock.guard import supervisor_hints as hints
from penstock.guard.malloc_env import STEADY
from penstock.guard.supervise import _THIS, EARLY, supervise
from penstock.memory.cgroups import find_cgroups
from penstock.memory.jail import run_limited


def test_a_killed_function_is_called_again(tmp_path):
    marks = tmp_path / "marks"

    def work() -> None:
        with open(marks, "a", encoding="ascii") as file:
            file.write(os.environ.get("PENSTOCK_RESUME", "first") + "\n")
        if len(marks.read_text().splitlines()) < 3:
            os.kill(os.getpid(), signal.SIGKILL)

    done = supervise(work, checkpoint=tmp_path)
    assert done.returncode == 0 and done.deaths == ["SIGKILL", "SIGKILL"]
    assert marks.read_text().splitlines() == ["first", "1", "1"]


def test_a_function_that_always_dies_is_given_up(tmp_path):
    done = supervise(lambda: os.abort(), checkpoint=tmp_path)
    assert done.returncode == -signal.SIGABRT and len(done.deaths) == 4  # believed three times without a proof


def test_sizes_go_down_until_one_sample_still_dies(tmp_path):
    """The worker says what it tries; the verdict comes at one sample."""

    def work() -> None:
        from penstock.guard.supervisor_hints import micro_batch_hint, write_hint

        micro = micro_batch_hint() or 4
        write_hint(tmp_path, {"micro": micro, "batch": 4})
        with open(tmp_path / "sizes", "a", encoding="ascii") as file:
            file.write(f"{micro}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(OutOfMemory, match="one sample|1 sample"):
        supervise(work, checkpoint=tmp_path)
    assert (tmp_path / "sizes").read_text().split() == ["4", "2", "1"]


@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_a_worker_killed_before_its_first_step_is_given_up(tmp_path):
    """The kernel kills it in earnest, four times: nothing smaller could be tried, and the verdict says so."""
    hints.write_hint(tmp_path, {"micro": 8, "batch": 8})  # an earlier run's: not this worker's first step
    script = "import sys; print('began', file=open(sys.argv[1], 'a'), flush=True); bytearray(400_000_000)"
    command = [sys.executable, "-c", script, str(tmp_path / "marks")]
    with pytest.raises(OutOfMemory, match=r"killed 4 times \(SIGKILL\) before its first step") as caught:
        supervise(command, checkpoint=tmp_path, memory="100MB")
    assert EARLY == 3 and (tmp_path / "marks").read_text().split() == ["began"] * 4
    assert caught.value.micro == 0


@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_a_step_makes_early_deaths_forgotten(tmp_path):
    """Three early deaths, a first step, then a death in the step: that one goes on with smaller parts."""
    script = """
import json, os, sys
from pathlib import Path
folder = Path(sys.argv[1])
marks = folder / "marks"
micro = os.environ.get("PENSTOCK_MICRO_BATCH", "none")
marks.write_text((marks.read_text() if marks.exists() else "") + micro + " ")
if len(marks.read_text().split()) == 4:
    (folder / "guard.json").write_text(json.dumps({"micro": 8, "batch": 8}))
if len(marks.read_text().split()) < 5:
    bytearray(400_000_000)
"""
    done = supervise([sys.executable, "-c", script, str(tmp_path)], checkpoint=tmp_path, memory="100MB")
    assert done.returncode == 0 and done.deaths == ["SIGKILL"] * 4
    assert (tmp_path / "marks").read_text().split() == ["none"] * 4 + ["4"]


MALLOC = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
info = type("Info", (ctypes.Structure,), {"_fields_": [(f"f{i}", ctypes.c_size_t) for i in range(10)]})
libc.mallinfo2.restype = info
libc.free(libc.malloc(16 << 20))  # by default this moves the threshold up to 16 MiB
before = libc.mallinfo2().f4  # bytes in mapped blocks
blocks = [libc.malloc(1 << 20) for _ in range(8)]
found = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "GLIBC_"))}
json.dump({"mapped": libc.mallinfo2().f4 - before, "env": found}, open(sys.argv[1], "w"))
"""


def allocator_of(tmp_path, **env):
    """What a supervised worker's malloc does, and what it was told."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    # The process that fit(supervise=True) becomes: its environment is all that the worker inherits.
    command = [*_THIS, str(tmp_path), "--", sys.executable, "-c", MALLOC, str(tmp_path / "found.json")]
    subprocess.run(command, env={**clean, "PYTHONPATH": os.getcwd(), **env}, check=True)
    return json.loads((tmp_path / "found.json").read_text())


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc, or one before 2.33")
class TestAllocatorOfTheWorker:
    """Forecasts hold for steady thresholds only: glibc's own ones move."""

    def test_it_is_the_one_that_forecasts_assume(self, tmp_path):
        found = allocator_of(tmp_path)
        assert found["env"] == STEADY
        assert found["mapped"] >= 8 << 20  # each block a mapping of its own, which goes back when it is freed

    def test_the_users_own_setting_wins(self, tmp_path):
        found = allocator_of(tmp_path, MALLOC_MMAP_THRESHOLD_=str(32 << 20))
        assert found["env"] == {**STEADY, "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
        assert found["mapped"] == 0

    def test_so_does_a_tunable(self, tmp_path):
        tunables = "glibc.malloc.mmap_threshold=33554432"
        found = allocator_of(tmp_path, GLIBC_TUNABLES=tunables)
        assert found["env"] == {
            "GLIBC_TUNABLES": tunables,
            "MALLOC_TRIM_THRESHOLD_": STEADY["MALLOC_TRIM_THRESHOLD_"],
        }
        assert found["mapped"] == 0

    def test_penstock_train_starts_its_worker_so(self, tmp_path, monkeypatch):
        """The environment that the parent of a run hands to the supervisor leaves the thresholds to it."""
        from penstock.train.config import Config
        from penstock.train.supervisor import _environment

        for name in STEADY:
            monkeypatch.delenv(name, raising=False)
        config = Config(data="d")
        command = [sys.executable, "-c", MALLOC, str(tmp_path / "found.json")]
        supervise(command, checkpoint=tmp_path, env=_environment(config))
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["env"].items() >= STEADY.items() and found["mapped"] >= 8 << 20


def test_the_terminal_is_told_of_restarts_and_of_the_verdict(tmp_path):
    """A script that supervises itself has nobody else who could say what became of its worker."""
    script = """
import os, signal, sys
from pathlib import Path
from penstock.guard.supervisor_hints import micro_batch_hint, write_hint
write_hint(Path(sys.argv[1]), {"micro": micro_batch_hint() or 4, "batch": 4})
os.kill(os.getpid(), signal.SIGKILL)
"""
    worker = [sys.executable, "-c", script, str(tmp_path)]
    command = [*_THIS, str(tmp_path), "--", *worker]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True, check=False
    )
    first, second, verdict = done.stderr.splitlines()
    assert done.returncode == 1
    assert first.startswith("penstock: the worker was ended") and first.endswith(
        "(SIGKILL); it goes on in micro-batches of 2."
    )
    assert second.endswith("micro-batches of 1.")
    assert verdict.startswith("penstock: The forward pass of 1 sample does not fit")


def test_an_error_of_python_is_not_tried_again(tmp_path):
    def work() -> None:
        raise ZeroDivisionError

    done = supervise(work, checkpoint=tmp_path)
    assert done.returncode == 1 and done.deaths == []


SCRIPT = """
import json, os, sys
import numpy as np, keras
import penstock as ps
keras.utils.set_random_seed(0)
layers = [keras.Input((32, 32, 3))]
layers += [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(8)]
model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)])
model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rng = np.random.default_rng(0)
data = [(rng.normal(size=(rows, 32, 32, 3)).astype("f"), rng.integers(0, 4, rows)) for rows in (16, 192, 192)]
folder, out = sys.argv[1:]
history = ps.fit(model, data, epochs=1, checkpoint=folder, checkpoint_steps=1, supervise=True)
found = {"loss": history.history["loss"], "micro": os.environ.get("PENSTOCK_MICRO_BATCH"),
         "resumed": os.environ.get("PENSTOCK_RESUME"), "iterations": int(model.optimizer.iterations)}
open(out, "w").write(json.dumps(found))
"""


def train_in_jail(folder: Path, nbytes: int) -> tuple[dict, object]:
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    env |= {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(folder / "script.py"), str(folder / "run"), str(folder / "out.json")]
    outcome = run_limited(command, nbytes, env=env, capture=True, timeout_s=800, how="cgroup")
    assert outcome.returncode == 0, (outcome.returncode, (outcome.stderr or "")[-3000:])
    return json.loads((folder / "out.json").read_text()), outcome


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_a_script_killed_by_the_kernel_ends_with_the_same_loss(tmp_path):
    """TensorFlow in a real memory cgroup: `fit(supervise=True)` is all that the script has to say."""
    enough, roomy = train_in_jail(tmp_path / "enough", 8 * 2**30)
    assert not roomy.killed and enough["resumed"] is None
    short, jailed = train_in_jail(tmp_path / "short", int(0.72 * roomy.peak_nbytes))
    print(enough, short, roomy.peak_nbytes, jailed.peak_nbytes)
    assert jailed.killed and short["resumed"] == "1" and int(short["micro"]) < 192
    assert short["iterations"] == enough["iterations"] == 3
    assert short["loss"] == pytest.approx(enough["loss"], rel=1e-4)

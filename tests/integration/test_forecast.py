"""Forecasts against what really happens: measured peaks, and a kernel that kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from penstock.core.events import events
from penstock.guard.forecast.forecast import ForecastOptions, forecast
from penstock.guard.malloc_env import STEADY
from penstock.memory.cgroups import find_cgroups
from penstock.memory.jail import run_limited

WIDTH, DEPTH, ROWS = 1024, 40, 768
BATCH = (np.ones((32, WIDTH), np.float32), np.zeros(32, np.int64))
ENV = {
    **os.environ, **STEADY, "PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_WAIT_POLICY": "PASSIVE",
}  # fmt: skip

# Much memory for little work: each tanh keeps its output, 4 kB a row.
TORCH = f"""
import torch

def build():
    layers = [torch.nn.Tanh() for _ in range({DEPTH})]
    return torch.nn.Sequential(torch.nn.Linear({WIDTH}, {WIDTH}), *layers, torch.nn.Linear({WIDTH}, 4))

def train(data, micro):
    from penstock.guard import Guard
    model = build()
    guard = Guard(model, torch.optim.AdamW(model.parameters()), micro_batch=micro)
    for _ in range(3):
        guard.step(data, torch.nn.CrossEntropyLoss())
"""
KERAS = f"""
import keras

def build():
    layers = [keras.layers.Activation("tanh") for _ in range({DEPTH})]
    ends = [keras.layers.Dense({WIDTH}), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input(({WIDTH},)), ends[0], *layers, ends[1]])
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model

def train(data, micro):
    from penstock.guard import fit
    fit(build(), [data] * 3, micro_batch=micro)
"""
RUN = """
if __name__ == "__main__":
    import sys
    import numpy as np
    rows, micro = int(sys.argv[1]), int(sys.argv[2])
    train((np.ones((rows, 1024), np.float32), np.zeros(rows, np.int64)), micro)
    # Not ru_maxrss: it outlives exec, so that it is at least what the parent had when it forked.
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print((int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0])) * 1024)
"""


@cache  # a torch forecast serves two tests
def forecast_of(script, backend):
    options = ForecastOptions(batch=ROWS, seconds=3, timeout_s=1200, probe_rows=ROWS // 4, backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.py")
        path.write_text(script)
        return forecast(f"{path}:build", BATCH, precision="float32", remat=False, memory="2GB", options=options)


def real_peak(path, backend, rows, micro):
    command = [sys.executable, "-W", "ignore", str(path), str(rows), str(micro)]
    env = {**ENV, "KERAS_BACKEND": backend or "tensorflow"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.splitlines()[-1])


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("script", "backend"),
    [
        (TORCH, None),
        (KERAS, "tensorflow"),
        pytest.param(KERAS, "torch", marks=pytest.mark.slow),
        pytest.param(KERAS, "jax", marks=pytest.mark.slow),
    ],
    ids=["torch", "keras-tensorflow", "keras-torch", "keras-jax"],
)
def test_the_forecast_meets_the_measured_peak(script, backend, tmp_path):
    """Probes run a quarter of the batch at most; the forecast is within 10 %, in torch also that of parts."""
    path = tmp_path / "job.py"
    path.write_text(script + RUN)
    found = forecast_of(script, backend)
    assert found.framework == ("torch" if backend is None else f"keras-{backend}")
    assert found.costs[0].probed_rows <= ROWS // 4
    assert found.peak() == pytest.approx(real_peak(path, backend, ROWS, ROWS), rel=0.1)
    if backend is None:
        assert found.peak(micro=256) == pytest.approx(real_peak(path, backend, ROWS, 256), rel=0.1)
    weights = 4 * (WIDTH * WIDTH + WIDTH + WIDTH * 4 + 4)
    assert found.parts.parameters == pytest.approx(weights, rel=0.01)
    assert found.parts.gradients == weights
    assert found.parts.optimizer == pytest.approx(2 * weights, rel=0.01)
    assert found.parts.row == WIDTH * 4 + 8


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_what_fits_survives_and_what_does_not_is_killed(tmp_path):
    """Under a real limit: the largest batch lives, twice of it is killed, and lives in the parts that were advised."""
    path = tmp_path / "job.py"
    path.write_text(TORCH + RUN)
    limit = 400_000_000
    found = forecast_of(TORCH, None)
    fits = found.largest_batch(limit=limit)
    large = fits * 2
    micro = found.micro_batch(large, limit)
    assert 0 < micro < large and found.peak(large) > limit

    def run(rows, part):
        return run_limited([sys.executable, str(path), str(rows), str(part)], limit, env=ENV, capture=True)

    whole = run(fits, fits)
    assert whole.returncode == 0 and not whole.killed, whole.stderr
    assert run(large, large).killed
    divided = run(large, micro)
    assert divided.returncode == 0 and not divided.killed, divided.stderr


@pytest.mark.timeout(1500)
def test_a_live_module_is_probed_elsewhere_and_stays_as_it_is():
    torch = pytest.importorskip("torch")
    blocks = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(256, 4))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    seen: list[int] = []
    remove = events.listen(lambda e: seen.append(e.values["rows"]) if e.kind == "forecast.probe" else None)
    batch = (np.ones((8, 256), np.float32), np.zeros(8, np.int64))
    try:
        found = forecast(
            model, [batch], optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), precision="float32",
            options=ForecastOptions(batch=4096, seconds=3, timeout_s=1200),
        )  # fmt: skip
    finally:
        remove()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert seen[:2] == [8, 32] and found.batch == 4096
    assert found.parts.optimizer == found.parts.gradients  # momentum alone
    assert found.peak(remat=True) < found.peak(remat=False)


def test_a_probe_does_not_outlive_who_asked(tmp_path):
    told = tmp_path / "pid"
    (tmp_path / "net.py").write_text(
        f"import os, time\ndef build():\n    open({str(told)!r}, 'w').write(str(os.getpid()))\n    time.sleep(300)\n"
    )
    name = f"{tmp_path / 'net.py'}:build"
    script = f"import numpy, penstock as ps; ps.forecast({name!r}, numpy.zeros((4, 4)))"
    asking = subprocess.Popen([sys.executable, "-c", script], env={**ENV, "TMPDIR": str(tmp_path)})
    try:
        wait_until(lambda: told.exists() and told.read_text())
        probe = int(told.read_text())
        assert os.path.exists(f"/proc/{probe}")
    finally:
        asking.kill()
        asking.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{probe}"))


def wait_until(true, timeout_s=300.0):
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.timeout(1500)
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_a_live_keras_model_with_classes_of_its_own(backend):
    """Custom layers, losses and metrics travel by value; all settings are compared."""
    script = """
import json, keras, numpy as np
from penstock.core.errors import InvalidInput
from penstock.guard.forecast.forecast import forecast, ForecastOptions

class Twice(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.inner = keras.layers.Dense(units, activation="tanh")
    def call(self, x):
        return self.inner(x) * 2
    def get_config(self):
        return {**super().get_config(), "units": self.units}

def own_loss(y, p):
    return keras.ops.mean(keras.ops.square(y - p), axis=-1)

model = keras.Sequential([keras.Input((256,)), *[Twice(256) for _ in range(6)], keras.layers.Dense(2)])
try:
    forecast(model, (np.ones((16, 256), "f"), np.ones((16, 2), "f")))
except InvalidInput as error:
    assert "not compiled" in str(error)
else:
    raise SystemExit("a model that is not compiled was taken")
model.compile("adam", own_loss)
weights = model.get_weights()
options = ForecastOptions(batch=512, seconds=6, timeout_s=1200)
found = forecast(model, (np.ones((16, 256), "f"), np.ones((16, 2), "f")), options=options)
assert all((a == b).all() for a, b in zip(weights, model.get_weights()))
print(json.dumps(found.as_dict()))
"""
    env = {**ENV, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["framework"] == f"keras-{backend}"
    assert {(s["precision"], s["remat"]) for s in found["settings"]} == {
        (precision, remat) for precision in ("float32", "mixed_bfloat16") for remat in (False, True)
    }, found["notes"]


class TestCommand:
    def plan(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "penstock", "plan", *words], env=ENV, capture_output=True, text=True, check=False
        )

    @pytest.mark.timeout(1500)
    def test_a_plan_as_json(self, tmp_path):
        (tmp_path / "net.py").write_text(TORCH)
        words = ("--batch", "127", "--shape", str(WIDTH), "--classes", "4", "--memory", "2GB", "--no-remat")
        found = self.plan(f"{tmp_path}/net.py:build", *words, "--precision", "float32", "--workers", "2", "--json")
        assert found.returncode == 0, found.stderr
        values = json.loads(found.stdout)
        assert values["fits"] is True and values["batch"] == 64 and values["limit"]["nbytes"] == 10**9
        assert values["notes"][0].startswith("For each of 2 processes on one host: 64 rows")
        assert values["parts"]["row"] == WIDTH * 4 + 8

    @pytest.mark.timeout(1500)
    def test_a_keras_sequential_says_its_own_shapes(self, tmp_path):
        """As the first example of --help: no data, no shape."""
        (tmp_path / "net.py").write_text(KERAS)
        words = (
            "--batch",
            "64",
            "--memory",
            "4GB",
            "--no-remat",
            "--precision",
            "float32",
            "--backend",
            "jax",
            "--json",
        )
        found = self.plan(f"{tmp_path}/net.py:build", *words)
        assert found.returncode == 0, found.stderr
        values = json.loads(found.stdout)
        assert values["framework"] == "keras-jax" and values["fits"] is True
        assert values["parts"]["row"] == WIDTH * 4 + 8

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("none.py:build",), "there is no file none.py"),
            (("model.keras",), "module.py:build"),
            (("net.py:build", "--shape", "2,b"), "is not a shape"),
            (("net.py:build", "--shape", "2", "--data", "net.py"), "both say what a sample is"),
        ],
    )
    def test_mistakes_are_one_sentence(self, words, said, tmp_path):
        net = tmp_path / "net.py"
        net.write_text("def build():\n    return 3\n")
        found = self.plan(*(word.replace("net.py", str(net)) for word in words))
        assert found.returncode == 1 and "Traceback" not in found.stderr
        assert said in " ".join(found.stderr.split())

    def test_help_has_examples(self):
        found = self.plan("--help")
        assert found.returncode == 0 and "penstock plan model.py:build" in found.stdout

    @pytest.mark.timeout(1500)
    def test_a_broken_build_is_told(self, tmp_path):
        (tmp_path / "net.py").write_text("def build():\n    return 3\n\ndef broken():\n    return no_such_name\n")
        for name, said in (
            ("build", "returned a int"),
            ("broken", "NameError: name 'no_such_name' is not defined (line 5"),
        ):
            found = self.plan(f"{tmp_path}/net.py:{name}", "--shape", "4")
            assert found.returncode == 1 and "Traceback" not in found.stderr
            assert said in " ".join(found.stderr.split())

    @pytest.mark.timeout(1500)
    def test_a_model_that_does_not_take_the_shape_is_told(self, tmp_path):
        """Not that time was up, nor a traceback: what the model said about the batch."""
        (tmp_path / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(4, 2)\n")
        found = self.plan(f"{tmp_path}/net.py:build", "--shape", "5", "--classes", "2")
        said = " ".join(found.stderr.split())
        assert found.returncode == 1 and "Traceback" not in said and "longer than" not in said
        assert "The model failed on the example batch: RuntimeError: mat1 and mat2 shapes cannot be multiplied" in said

    @pytest.mark.timeout(1500)
    def test_a_probe_that_dies_says_how(self, tmp_path):
        """A process that is gone before it is asked was not late."""
        (tmp_path / "net.py").write_text("import os\n\ndef build():\n    os.abort()\n")
        found = self.plan(f"{tmp_path}/net.py:build", "--shape", "4")
        assert found.returncode == 1 and "was killed by signal 6" in " ".join(found.stderr.split())

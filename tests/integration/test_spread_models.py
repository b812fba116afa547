"""Keras models on JAX that `keras.distribution` spreads over the devices of two processes, on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import postgres_server

ROOT = Path(__file__).parents[2]

JOB = """
import json, sys
import numpy as np
import keras
rank, size, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
ways = keras.distribution
if size > 1:
    ways.initialize(f"127.0.0.1:{port},127.0.0.1:1", size, rank)
import penstock as ps
x = np.random.default_rng(0).normal(size=(67, 4)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
rows = ps.from_tensor_slices((x, y, np.arange(67)))
some = rows.filter(lambda x, y, n: n % 5 != 2)  # as many in each process, and no whole number of batches
lopsided = rows.filter(lambda x, y, n: n % 4 != 1)  # of one process only
def batched(ds, size):
    seen = []
    def note(x, y, n):
        seen.extend(n.tolist())
        return x, y
    return ds.batch(size).map(note), seen
def made():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model
def refused(call):
    try:
        call()
    except ps.PenstockError as error:
        return str(error)
def outcome(folder, data=some, **options):
    ds, seen = batched(data, 16 // size)
    valid, _ = batched(rows, 16 // size)
    options = {"epochs": 2, "validation_data": valid, "checkpoint": folder, "checkpoint_steps": 2, **options}
    history = ps.fit(made(), ds, **options).history
    return {"history": history, "seen": seen}
cases = {"alone": None}
if size > 1:
    def parallel(shape, kernels):
        mesh = ways.DeviceMesh(shape, ["batch", "model"], ways.list_devices())
        layout = ways.LayoutMap(mesh)
        layout[kernels] = (None, "model")
        return ways.ModelParallel(layout_map=layout, batch_dim_name="batch")
    pieces = parallel((2, 2), ".*kernel")
    cases = {"copies": ways.DataParallel(auto_shard_dataset=False), "no copies": parallel((1, 4), "dense/kernel")}
out = {}
for name, way in cases.items():
    ways.set_distribution(way)
    out[name] = outcome(f"{folder}/{name}")
    keras.backend.clear_session(free_memory=False)
if size == 1:
    out["whole"] = made().fit(batched(rows, 16)[0].take(4).keras(), epochs=2, verbose=0).history
else:
    ways.set_distribution(pieces)
    out["parts"] = outcome(f"{folder}/parts", lopsided, micro_batch=5)
    again, _ = batched(lopsided, 8)
    resumed = ps.fit(made(), again, epochs=3, checkpoint=f"{folder}/parts", resume=True)
    out["resumed"] = resumed.history["loss"]
    ds, _ = batched(rows, 8)
    out["whole"] = made().fit(ds.keras(), epochs=2, verbose=0).history
    out["refused"] = [refused(lambda: ps.evaluate(made(), ds))]
    ways.set_distribution(cases["no copies"])
    out["refused"].append(refused(lambda: made().fit(ds.keras(), verbose=0)))
print(json.dumps(out), flush=True)
"""


def start(folder: Path, rank: int, size: int, port: int) -> subprocess.Popen[str]:
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    env |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    argv = [sys.executable, "-c", JOB, str(rank), str(size), str(port), str(folder)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


def near(found: dict[str, list[float]], wanted: dict[str, list[float]]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-5), name


@pytest.mark.timeout(900)
def test_two_processes_with_one_model_learn_what_one_process_learns(tmp_path: Path) -> None:
    port = postgres_server.free_port()
    started = [start(tmp_path / "2", rank, 2, port) for rank in range(2)]
    try:
        first, second = [result(process) for process in started]
    finally:
        for process in started:
            process.kill()
    alone = result(start(tmp_path / "1", 0, 1, port))
    # Batch statistics are of all rows: processes that had a copy each would have them of their own.
    for case in ("copies", "no copies"):
        near(first[case]["history"], alone["alone"]["history"])
        assert first[case]["history"] == second[case]["history"]
        assert sorted(first[case]["seen"] + second[case]["seen"]) == sorted(alone["alone"]["seen"])
    parts = [rank["parts"] for rank in (first, second)]
    assert parts[0]["history"] == parts[1]["history"]
    assert len(parts[0]["seen"]) != len(parts[1]["seen"])
    assert sorted(parts[0]["seen"] + parts[1]["seen"]) == sorted(2 * [n for n in range(67) if n % 4 != 1])
    assert len(first["resumed"]) == 3 and first["resumed"] == second["resumed"]
    assert first["resumed"][:2] == pytest.approx(first["parts"]["history"]["loss"])
    near(first["whole"], alone["whole"])  # Keras itself ends with the last batch that is whole everywhere
    for evaluated, mesh in (first["refused"], second["refused"]):
        assert "give validation_data to fit()" in evaluated
        assert "some of them must bring the same rows" in mesh

"""Models over several devices and ranks, by the frameworks' own means, fed by penstock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

DATA = """
import json, os, sys
import numpy as np
import penstock as ps
from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.core.world import WorldError
from penstock.guard.ranks.agree import find_ranks
ROWS = int(os.environ.get("ROWS", "64"))
x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
ds = ps.from_tensor_slices((x, y)).batch(16)
"""

KERAS = (
    DATA
    + """
import keras
def train(fit=lambda model: model.fit(ds.keras(), epochs=2, verbose=0)):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return fit(model).history["loss"]
def refused(call):
    try:
        call()
    except ps.PenstockError as error:
        return str(error)
"""
)

MIRRORED = (
    """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
    + KERAS
    + """
alone = train()
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    found = [alone, train()]
    guarded = refused(lambda: train(lambda model: ps.fit(model, ds, epochs=2)))
task = {"type": "worker", "index": 0}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": task})
print(json.dumps({"losses": found, "guarded": guarded, "workers": refused(train)}))
"""
)

PARALLEL = (
    KERAS
    + """
guarded = lambda model: ps.fit(model, ds, epochs=2, micro_batch=6)  # parts of 6 and of 4 rows on 4 devices
found = [train()]
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
found += [train(), train(guarded)]
mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], keras.distribution.list_devices())
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
found += [train(guarded)]
print(json.dumps({"losses": found}))
"""
)

ON_TORCH = (
    KERAS
    + """
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
print(json.dumps([refused(train), refused(lambda: train(lambda model: ps.fit(model, ds)))]))
"""
)

FSDP = (
    DATA
    + """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
if size > 1:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + os.environ["PORT"], rank=rank, world_size=size)
    fully_shard(model[2])
    try:
        ps.Guard(model, torch.optim.SGD(model.parameters()))
    except InvalidInput as error:
        refused = str(error)
    fully_shard(model)
    try:
        find_ranks("jax")
    except WorldError as error:
        other = str(error)
ds = ps.from_tensor_slices((x, y)).batch(16 // size)
out = {"rows": 0, "losses": [], "whole": []}
for kind in (torch.optim.AdamW, torch.optim.RMSprop):
    guard = ps.Guard(model, kind(model.parameters(), 0.01), micro_batch=3, clip_norm=1.0)
    for _ in range(2):
        for batch in guard.epoch(ds):
            loss = guard.step(batch, torch.nn.functional.cross_entropy)
            out["rows"] += 0 if repr(batch) == "no rows" else len(batch[1])
            out["losses"].append(float(loss))
    whole = [getattr(p, "full_tensor", lambda: p)().sum().item() for p in model.parameters()]
    out["whole"].append(whole)
if size > 1:
    out |= {"refused": refused, "other": other, "mine": sum(p.to_local().numel() for p in model.parameters())}
    def short(model, batch):
        if rank == 1:
            raise MemoryError("no room")
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    try:
        guard.step((x[:4], y[:4]), short)
    except (OutOfMemory, RuntimeError) as error:  # of the others: the connection to the first is gone
        out["short"] = str(error)
print(json.dumps(out), flush=True)
os._exit(0)  # the process group is torn already
"""
)


def run(code: str, **env: str) -> Any:
    whole = {**os.environ, **env, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen([sys.executable, "-c", code], env=whole, stdout=-1, stderr=-1, text=True)


def result(process: Any) -> Any:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-2000:]
    return json.loads(out.splitlines()[-1])


def test_keras_on_tensorflow_trains_on_two_devices_as_on_one_and_says_what_cannot_work() -> None:
    found = result(run(MIRRORED, KERAS_BACKEND="tensorflow"))
    alone, two = found["losses"]
    assert two == pytest.approx(alone, rel=1e-4) and two[-1] < two[0]
    assert "MirroredStrategy (2 replicas)" in found["guarded"] and "model.fit(ds.keras())" in found["guarded"]
    assert "fails on them" in found["workers"] and "torchrun" in found["workers"]


def test_keras_on_jax_trains_on_four_devices_as_on_one() -> None:
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    alone, *others = result(run(PARALLEL, **env))["losses"]
    assert len(others) == 3 and alone[-1] < alone[0]
    for losses in others:
        assert losses == pytest.approx(alone, rel=1e-4)


def test_keras_distribution_on_torch_is_refused_since_it_does_nothing_there() -> None:
    for why in result(run(ON_TORCH, KERAS_BACKEND="torch")):
        assert "does nothing on the torch backend" in why


def test_a_sharded_torch_model_takes_the_guards_steps_as_a_whole_one_does() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    started = [run(FSDP, RANK=str(rank), WORLD_SIZE="2", PORT=port, ROWS="67") for rank in range(2)]
    alone = result(run(FSDP, ROWS="67"))
    ranks = [result(process) for process in started]
    assert sum(rank["rows"] for rank in ranks) == alone["rows"] == 4 * 67
    assert len(ranks[0]["losses"]) == len(ranks[1]["losses"]) == len(alone["losses"])
    for rank in ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert [sum(whole) for whole in rank["whole"]] == pytest.approx([sum(w) for w in alone["whole"]], rel=1e-4)
        assert "jax, on which the model runs, is not joined" in rank["other"]
        assert "fully_shard(model) was called for the whole" in rank["refused"]
    assert sum(rank["mine"] for rank in ranks) == 4 * 8 + 8 + 8 * 2 + 2
    assert "micro_batch=1" in ranks[1]["short"] and "start all ranks again" in ranks[1]["short"]
    assert "short" in ranks[0]

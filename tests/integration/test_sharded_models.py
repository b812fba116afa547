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
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
ds = ps.from_tensor_slices((x, y)).batch(16)
"""

KERAS = (
    DATA
    + """
import keras
def train():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(ds.keras(), epochs=2, verbose=0).history["loss"]
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
    print(json.dumps([alone, train()]))
"""
)

PARALLEL = (
    KERAS
    + """
alone = train()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
print(json.dumps([alone, train()]))
"""
)

FSDP = (
    DATA
    + """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from penstock.core.errors import InvalidInput
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + os.environ["PORT"], rank=rank, world_size=size)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
try:
    ps.Guard(model, optimizer)
    refused = ""
except InvalidInput as error:
    refused = str(error)
rows = 0
for _ in range(2):
    for x, y in ds.torch():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        rows += len(y)
whole = sum(p.full_tensor().sum().item() for p in model.parameters())
mine = sum(p.to_local().numel() for p in model.parameters())
print(json.dumps({"rows": rows, "whole": whole, "mine": mine, "refused": refused}), flush=True)
dist.destroy_process_group()
"""
)


def run(code: str, **env: str) -> Any:
    whole = {**os.environ, **env, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen([sys.executable, "-c", code], env=whole, stdout=-1, stderr=-1, text=True)


def result(process: Any) -> Any:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-2000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("code", "env"),
    [
        (MIRRORED, {"KERAS_BACKEND": "tensorflow"}),
        (PARALLEL, {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}),
    ],
    ids=["MirroredStrategy", "DataParallel"],
)
def test_keras_trains_on_two_devices_as_on_one(code: str, env: dict[str, str]) -> None:
    alone, two = result(run(code, **env))
    assert two == pytest.approx(alone, rel=1e-4) and two[-1] < two[0]


def test_a_sharded_torch_model_is_fed_by_rank_and_the_guard_says_that_it_cannot_step_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    started = [run(FSDP, RANK=str(rank), WORLD_SIZE="2", PORT=port) for rank in range(2)]
    ranks = [result(process) for process in started]
    assert [rank["rows"] for rank in ranks] == [64, 64]  # two epochs of half the rows
    assert ranks[0]["whole"] == ranks[1]["whole"]
    assert sum(rank["mine"] for rank in ranks) == 4 * 8 + 8 + 8 * 2 + 2
    assert all("sharded over ranks" in rank["refused"] for rank in ranks)

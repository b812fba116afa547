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

TWO_CPUS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""

MIRRORED = (
    TWO_CPUS
    + KERAS
    + """
found = [train()]
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    found += [train()]
task = {"type": "worker", "index": 0}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": task})
print(json.dumps({"losses": found, "workers": refused(train)}))
"""
)

GUARDED_MIRRORED = (
    TWO_CPUS
    + KERAS
    + """
from penstock.core.events import events
layers, losses = keras.layers, keras.losses
weighted = ps.from_tensor_slices((x, y, 1 + (y > 0) + x[:, 0] ** 2)).batch(16)
words = np.random.default_rng(1).integers(0, 3, (ROWS, 5))
padded = ps.from_tensor_slices((words, words.astype("float32"))).batch(16)  # 0 is a masked word
def plain(optimizer, **options):
    model = keras.Sequential([layers.Dense(8, activation="tanh", kernel_regularizer="l2"), layers.Dense(2)])
    options = {"loss": losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"], **options}
    model.compile(optimizer, **options)
    return model
def masked():
    model = keras.Sequential([layers.Embedding(3, 4, mask_zero=True), layers.Dense(1), layers.Reshape((5,))])
    model.compile("sgd", "mse")
    return model
def mean_of_weights():
    kind = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return plain("sgd", loss=kind, weighted_metrics=["accuracy"])
CASES = {
    "adam": (lambda: plain("adam"), ds),
    "clipped": (lambda: plain(keras.optimizers.AdamW(0.01, global_clipnorm=0.05, use_ema=True)), ds),
    "clipped each": (lambda: plain(keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.01)), ds),
    "sum": (lambda: plain("sgd", loss=losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")), ds),
    "weights": (mean_of_weights, weighted),
    "masks": (masked, padded),
}
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
def outcome(make, data, **options):
    keras.utils.set_random_seed(1)
    model = make()
    history = ps.fit(model, data, epochs=2, validation_data=data, **options).history
    copies = [[np.asarray(copy).tolist() for copy in getattr(v.value, "values", [])] for v in model.trainable_variables]
    weights = [np.asarray(w).sum().item() for w in model.get_weights()]
    scores = ps.evaluate(model, data)
    predicted = np.concatenate([np.asarray(p) for p in ps.predict(model, data)]).sum().item()
    return {"history": history, "weights": weights, "copies": copies, "scores": scores, "predicted": predicted}
found = {}
for name, (make, data) in CASES.items():
    def made():
        with strategy.scope():
            return make()
    found[name] = [outcome(make, data), outcome(made, data), outcome(made, data, micro_batch=5)]
    found[name] += [outcome(made, data, micro_batch=1)]
from penstock.guard.keras.backends.tensorflow_mirrored import MirroredBackend
whole = MirroredBackend.gradients
def short(self, state, pieces, *rest):
    if max(len(piece[1]) for piece in pieces) > 3:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    return whole(self, state, pieces, *rest)
MirroredBackend.gradients = short
with strategy.scope():
    torn = outcome(CASES["adam"][0], ds)
micros = [e.values["micro"] for e in events.recent if e.kind == "guard.smaller"]
with strategy.scope():
    model = plain("adam")
    stopped = outcome(lambda: model, ds, checkpoint=sys.argv[1], checkpoint_steps=2)
    again = ps.fit(plain("adam"), ds, epochs=3, checkpoint=sys.argv[1], resume=True).history["loss"]
outside = keras.Sequential([layers.Input((4,)), layers.Dense(2)])
outside.compile("sgd", "mse")
def inside():
    with strategy.scope():
        ps.fit(outside, ds)
with strategy.scope():
    scaling = plain(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    synced = keras.Sequential([layers.Dense(4), layers.BatchNormalization(synchronized=True), layers.Dense(2)])
    synced.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
told = [refused(inside), refused(lambda: ps.fit(scaling, ds)), refused(lambda: ps.fit(synced, ds))]
print(json.dumps({"cases": found, "torn": torn, "micros": micros, "again": again, "told": told}))
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
found = [refused(train), refused(lambda: train(lambda model: ps.fit(model, ds)))]
keras.distribution.set_distribution(None)
os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}  # a launcher started two, and nothing joins them
print(json.dumps([*found, refused(train), refused(lambda: train(lambda model: ps.fit(model, ds)))]))
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


def run(code: str, *arguments: str, **env: str) -> Any:
    whole = {**os.environ, **env, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=whole, stdout=-1, stderr=-1, text=True)


def result(process: Any) -> Any:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-2000:]
    return json.loads(out.splitlines()[-1])


def test_keras_on_tensorflow_trains_on_two_devices_as_on_one_and_says_what_cannot_work() -> None:
    found = result(run(MIRRORED, KERAS_BACKEND="tensorflow"))
    alone, two = found["losses"]
    assert two == pytest.approx(alone, rel=1e-4) and two[-1] < two[0]
    assert "fails on them" in found["workers"] and "torchrun" in found["workers"]


def test_the_guard_steps_a_mirrored_model_as_one_device_does(tmp_path: Path) -> None:
    found = result(run(GUARDED_MIRRORED, str(tmp_path), KERAS_BACKEND="tensorflow", ROWS="67"))
    for name, (alone, *mirrored) in found["cases"].items():
        assert not any(alone["copies"]), name
        for other in mirrored:
            assert other["copies"] and all(len(c) == 2 and c[0] == c[1] for c in other["copies"]), name
            assert_same(other, alone, name)
    assert_same(found["torn"], found["cases"]["adam"][0], "torn")
    assert found["micros"] == [8, 4]  # halves of what two devices had together
    assert len(found["again"]) == 3 and found["again"][2] < found["again"][1]
    outside, scaling, synced = found["told"]
    assert "do not share one MirroredStrategy" in outside
    assert "Loss scaling is not supported" in scaling and "is synchronized over devices" in synced


def assert_same(found: dict[str, Any], alone: dict[str, Any], name: str) -> None:
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-5), name
    assert found["predicted"] == pytest.approx(alone["predicted"], rel=1e-4, abs=1e-4), name
    for kind in ("history", "scores"):
        assert found[kind].keys() == alone[kind].keys()
        for key, values in alone[kind].items():
            assert found[kind][key] == pytest.approx(values, rel=1e-4, abs=1e-5), (name, key)


def test_keras_on_jax_trains_on_four_devices_as_on_one() -> None:
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    alone, *others = result(run(PARALLEL, **env))["losses"]
    assert len(others) == 3 and alone[-1] < alone[0]
    for losses in others:
        assert losses == pytest.approx(alone, rel=1e-4)


def test_copies_on_torch_that_do_not_talk_are_refused_by_either_fit() -> None:
    *nothing, plain, guarded = result(run(ON_TORCH, KERAS_BACKEND="torch"))
    for why in nothing:
        assert "does nothing on the torch backend" in why
    for why in (plain, guarded):
        assert "would train 2 separate models" in why


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

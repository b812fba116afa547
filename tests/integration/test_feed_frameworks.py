"""ds.tensorflow() and ds.jax(), each in a process of its own, since frameworks do not like each other's threads."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TENSORFLOW = """
import gc, threading
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from penstock.dataset import Dataset
from penstock.read.arrays import from_tensor_slices
from tests.stand_ins import NumberRows

pixels = np.random.default_rng(0).integers(0, 255, (50, 16, 16, 3), dtype=np.uint8)
names = np.array([f"name {i}" for i in range(50)], dtype=object)
ds = from_tensor_slices(({"x": pixels, "s": names}, np.arange(50))).shuffle(seed=1).batch(8)
made = ds.tensorflow()
x, y = made.element_spec
assert x["x"] == tf.TensorSpec((None, 16, 16, 3), tf.uint8), x
assert x["s"] == tf.TensorSpec((None,), tf.string), x
assert y == tf.TensorSpec((None,), tf.int64)
assert int(made.cardinality()) == 7
epochs = []
for _ in range(2):
    rows = []
    for x, y in made:
        assert all(s.decode() == f"name {i}" for s, i in zip(x["s"].numpy(), y.numpy()))
        assert np.array_equal(x["x"].numpy(), pixels[y.numpy()])
        rows += y.numpy().tolist()
    assert sorted(rows) == list(range(50))
    epochs.append(rows)
assert epochs == [[int(i) for _, y in ds.at_epoch(e) for i in y] for e in range(2)], "looking cost an epoch"
assert from_tensor_slices(pixels).batch(10).tensorflow().element_spec.shape == (10, 16, 16, 3)

# The same memory: what the stream yields is what TensorFlow holds.
from penstock.feed import tensorflow as feed
addresses = []
plain = feed.to_array
def noting(value):
    array = plain(value)
    addresses.append(array.ctypes.data)
    return array
feed.to_array = noting
held = list(from_tensor_slices(pixels).batch(10).tensorflow())
assert [np.from_dlpack(t).ctypes.data for t in held] == addresses, "copied"
assert np.array_equal(np.concatenate([t.numpy() for t in held]), pixels)
feed.to_array = plain

# Unknown and endless.
odd = Dataset.of(NumberRows(30)).filter(lambda v: v % 2 == 1).batch(4)
assert int(odd.tensorflow().cardinality()) == tf.data.UNKNOWN_CARDINALITY
assert sum(int(tf.size(b)) for b in odd.tensorflow()) == 15
assert int(odd.repeat().tensorflow().cardinality()) == tf.data.INFINITE_CARDINALITY
with iter(odd) as it:
    next(it)
    assert sum(int(tf.size(b)) for b in odd.resume(it.position).tensorflow()) == 11

# Two devices.
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
shared = strategy.experimental_distribute_dataset(Dataset.of(NumberRows(50)).shuffle().batch(8).tensorflow())
got = [int(v) for batch in shared for part in strategy.experimental_local_results(batch) for v in part.numpy()]
assert sorted(got) == list(range(50)), got

# Nothing is left after breaking out.
for _ in made:
    break
del _
gc.collect()
assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []
print("all well")
"""

JAX = """
import threading
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from penstock.feed.jax import to_jax
from penstock.read.arrays import from_tensor_slices

pixels = np.random.default_rng(0).integers(0, 255, (64, 16, 16, 3), dtype=np.uint8)
names = np.array([f"n{i}" for i in range(64)], dtype=object)
ds = from_tensor_slices({"x": pixels, "y": np.arange(64, dtype=np.int32), "s": names}).shuffle(seed=1).batch(16)
for batch in ds.at_epoch(0):
    made = to_jax(batch["x"])
    assert made.unsafe_buffer_pointer() == batch["x"].ctypes.data, "copied"
    assert made.dtype == np.uint8
feed = ds.jax()
assert len(feed) == 4
held = list(feed)
assert [b["y"].tolist() for b in held] == [b["y"].tolist() for b in ds.at_epoch(0)]
assert all(np.array_equal(b["x"], pixels[np.asarray(b["y"])]) for b in held), "written over while held"
assert held[0]["s"] == [f"n{i}" for i in held[0]["y"].tolist()]
assert [b["y"].tolist() for b in feed] == [b["y"].tolist() for b in ds.at_epoch(1)]
mesh = jax.make_mesh((2,), ("rows",))
halves = NamedSharding(mesh, PartitionSpec("rows"))
batch = next(iter(from_tensor_slices(pixels).batch(16).jax(sharding=halves)))
assert batch.sharding == halves and [s.data.shape[0] for s in batch.addressable_shards] == [8, 8]
assert np.array_equal(batch, pixels[:16])
for _ in feed:
    break
assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []
print("all well")
"""


def _run(script: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
def test_tensorflow():
    assert "all well" in _run(TENSORFLOW)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_jax():
    assert "all well" in _run(JAX, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")

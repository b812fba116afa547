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
from tests.stand_ins import NumberRows, NumberUnits

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
from penstock.feed.tensorflow import leaves
addresses = []
plain = leaves.to_array
def noting(value):
    array = plain(value)
    addresses.append(array.ctypes.data)
    return array
leaves.to_array = noting
big = np.random.default_rng(0).integers(0, 255, (50, 64, 64, 3), dtype=np.uint8)
for way in (lambda d: d, lambda d: d.map(lambda x: x)):
    addresses.clear()
    held = list(way(from_tensor_slices(big).shuffle(seed=2).batch(10).tensorflow()))
    assert [np.from_dlpack(t).ctypes.data for t in held] == addresses, "copied"
    rows = np.concatenate([t.numpy() for t in held])
    assert sorted(map(hash, map(bytes, rows))) == sorted(map(hash, map(bytes, big))), "written over while held"
leaves.to_array = plain
# A part of a batch begins anywhere: it is copied to where kernels may read it.
odd = leaves.to_tensor(np.arange(100, dtype=np.float32)[3:])
assert np.from_dlpack(odd).ctypes.data % 64 == 0 and odd.numpy().tolist() == list(range(3, 100))
assert leaves.to_tensor(np.arange(6, dtype=np.int16).reshape(2, 3).T).numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
fixed = np.arange(32.0)
fixed.flags.writeable = False
assert leaves.to_tensor(fixed).numpy().sum() == 496

# One iterator is Python's and TensorFlow's: a graph goes on where a loop was.
def pairs():
    return from_tensor_slices((pixels, np.arange(50))).batch(8).tensorflow()
@tf.function
def one(iterator):
    x, y = next(iterator)
    return y
it = iter(pairs())
assert next(it)[1].numpy().tolist() == list(range(8))
assert it.position["done"] == 1
assert one(it).numpy().tolist() == list(range(8, 16))
assert next(it)[1].numpy().tolist() == list(range(16, 24))
it = iter(pairs())
assert [one(it).numpy()[0] for _ in range(7)] == [0, 8, 16, 24, 32, 40, 48]
try:
    one(it)
except tf.errors.OutOfRangeError:
    pass
else:
    raise AssertionError("no end")
it = iter(pairs())
assert it.get_next()[1].shape == (8,) and isinstance(it, tf.data.Iterator)
assert len(list(it)) == 6
try:
    it.get_next()
except tf.errors.OutOfRangeError:
    pass
else:
    raise AssertionError("no end")
@tf.function
def total(dataset):
    return dataset.reduce(tf.constant(0, tf.int64), lambda found, pair: found + tf.reduce_sum(pair[1]))
assert int(total(pairs())) == sum(range(50))
assert isinstance(pairs(), tf.data.Dataset) and len(pairs().take(2).prefetch(1).as_numpy_iterator().next()) == 2

# What goes wrong in the pipe is told, in a loop and in a graph, and never looks like the end.
def breaks(x, y):
    if y.max() > 20:
        raise OSError("the disk is gone")
    return x, y
for way in (lambda d: d, lambda d: d.map(lambda x, y: y)):
    try:
        seen = [1 for _ in way(from_tensor_slices((pixels, np.arange(50))).batch(8).map(breaks).tensorflow())]
    except Exception as error:
        assert "the disk is gone" in str(error), error
    else:
        raise AssertionError(f"ended after {len(seen)} batches as if that were all")

# Unknown and endless.
odd = Dataset.of(NumberRows(30)).filter(lambda v: v % 2 == 1).batch(4)
assert int(odd.tensorflow().cardinality()) == tf.data.UNKNOWN_CARDINALITY
assert sum(int(tf.size(b)) for b in odd.tensorflow()) == 15
assert int(odd.repeat().tensorflow().cardinality()) == tf.data.INFINITE_CARDINALITY
with iter(odd) as it:
    next(it)
    assert sum(int(tf.size(b)) for b in odd.resume(it.position).tensorflow()) == 11

# Small batches pass into a graph many at a time; a graph sees the batches of a loop, also behind one.
small = Dataset.of(NumberUnits((400, 250))).shuffle(seed=4).batch(7)
plain = [b.tolist() for b in small.at_epoch(0)]
assert [b.numpy().tolist() for b in small.at_epoch(0).tensorflow().map(lambda v: v)] == plain
it = iter(small.at_epoch(0).tensorflow())
assert [next(it).numpy().tolist() for _ in range(5)] == plain[:5]
@tf.function
def rest_of(iterator):
    return next(iterator)
assert [rest_of(it).numpy().tolist() for _ in plain[5:]] == plain[5:]

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
# An array is what `device_put` makes, and calls of compiled functions are not compiled again for it.
from penstock.core.events import fallbacks
leaves = [np.arange(10), np.arange(10.0), np.arange(10, dtype=np.uint64)[::-1], np.arange(6, dtype=np.float16),
          np.array([True, False]), np.zeros((0, 3), np.float32), np.float32(3), np.int64(-4), pixels[:3, 1:, :, ::2]]
for wide in (False, True):
    with jax.enable_x64(wide):
        for leaf in leaves:
            step = jax.jit(lambda v: ~v) if np.asarray(leaf).dtype == bool else jax.jit(lambda v: v + v)
            ours, theirs = to_jax(leaf), jax.device_put(leaf)
            told = [(a.dtype, a.shape, a.weak_type, a.committed, a.sharding) for a in (ours, theirs)]
            assert told[0] == told[1] and np.array_equal(ours, theirs), (leaf, told)
            assert np.array_equal(step(theirs), step(ours)) and step._cache_size() == 1, leaf
with jax.default_device(jax.devices()[1]):
    assert to_jax(np.arange(10)).devices() == {jax.devices()[1]}
assert not [what for what, _ in fallbacks() if what == "JAX"], fallbacks()
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


STRATEGY = """
import keras, tensorflow as tf, penstock as ps
from penstock.core.errors import InvalidInput
strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
plain = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
plain.compile("adam", "mse")
x = [[0.0] * 4] * 8, [[0.0] * 2] * 8
for tried, inside in ((model, False), (model, True), (plain, True)):
    try:
        with strategy.scope() if inside else tf.name_scope("none"):
            print(len(ps.fit(tried, ps.from_tensor_slices(x).batch(4)).history["loss"]))
    except InvalidInput as error:
        print(error)
print(len(ps.fit(plain, ps.from_tensor_slices(x).batch(4)).history["loss"]))
"""


@pytest.mark.slow
def test_a_strategy_with_one_replica_steps_its_own_models_and_refuses_others():
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", STRATEGY], env=env, capture_output=True, text=True, timeout=300)
    outside, inside, stranger, plain = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert (outside, inside, plain) == ("1", "1", "1")
    assert "do not share one OneDeviceStrategy" in stranger

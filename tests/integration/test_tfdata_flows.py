"""What tf.data users write, with the import changed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import InvalidInput

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for index in range(12):
        assert cv2.imwrite(str(folder / f"{index:02d}.jpg"), np.full((20, 30, 3), index * 20, np.uint8))
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for shard in range(3):
        with tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) as writer:
            for index in range(10):
                value = tf.train.Feature(float_list=tf.train.FloatList(value=[shard, index]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[shard * 10 + index]))
                example = tf.train.Example(features=tf.train.Features(feature={"x": value, "y": label}))
                writer.write(example.SerializeToString())
    return folder


def load(path):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.cast(tf.image.resize(image, [8, 8]), tf.uint8)


def test_list_files_and_functions_of_tensorflow(pictures):
    ds = ps.list_files(str(pictures / "*.jpg")).map(load, num_parallel_calls=ps.AUTOTUNE).batch(5).prefetch(ps.AUTOTUNE)
    batches = list(ds)
    assert [len(b) for b in batches] == [5, 5, 2] and len(ds) == 3
    assert batches[0].dtype == np.uint8 and batches[0].shape == (5, 8, 8, 3)
    means = np.concatenate(batches).mean(axis=(1, 2, 3))
    assert np.abs(means - np.arange(12) * 20).max() < 3


def test_from_tensor_slices_of_paths(pictures):
    paths = sorted(str(p) for p in pictures.glob("*.jpg"))
    ds = ps.from_tensor_slices((paths, list(range(12)))).map(lambda path, y: (load(path), y)).batch(4)
    assert np.concatenate([y for _, y in ds]).tolist() == list(range(12))


def test_interleaved_shards_with_the_users_own_parser(records):
    def open_shard(path):
        return ps.read_tfrecords(path, parse=None)

    def parse(record):
        spec = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_single_example(record, spec)
        return found["x"], found["y"]

    ds = (
        ps.list_files(str(records / "*.tfrecord"))
        .interleave(open_shard, cycle_length=ps.AUTOTUNE, num_parallel_calls=ps.AUTOTUNE)
        .map(parse, num_parallel_calls=ps.AUTOTUNE)
        .batch(8)
        .prefetch(ps.AUTOTUNE)
    )
    x, y = (np.concatenate(parts) for parts in zip(*ds, strict=True))
    assert sorted(y.tolist()) == list(range(30))
    assert (x[:, 0] * 10 + x[:, 1] == y).all()


def test_bounded_pipeline_keeps_its_elements_and_has_a_budget():
    pipeline = tf.data.Dataset.range(100).map(lambda v: v * 2, num_parallel_calls=tf.data.AUTOTUNE).batch(10)
    bounded = ps.bound(pipeline, memory="50MB")
    assert bounded.options().autotune.ram_budget == 50_000_000
    assert bounded.options().autotune.initial_parallelism == 1
    assert [v for b in bounded for v in b.numpy()] == list(range(0, 200, 2))
    assert "tf.data" in str(ps.memory_report())
    with pytest.raises(InvalidInput, match=r"tf.data.Dataset, not list"):
        ps.bound([1, 2])


def test_from_torch_shuffles_exactly_and_skips_bad_items():
    torch = pytest.importorskip("torch")

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            if index == 13:
                raise OSError("unreadable")
            return torch.full((3,), float(index)), index

    ds = ps.from_torch(Squares(), on_error="skip").shuffle(seed=2).batch(7)
    x, y = (np.concatenate(parts) for parts in zip(*ds, strict=True))
    assert sorted(y.tolist()) == [n for n in range(50) if n != 13]
    assert (x[:, 0] == y).all() and y.tolist() != sorted(y.tolist())

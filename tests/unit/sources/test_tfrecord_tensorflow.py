"""Our TFRecord reader and writer against TensorFlow's own."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.block import Block, column_value
from penstock.core.errors import BadData, InvalidInput
from penstock.core.source import OnError, RowSource
from penstock.read.tfrecord import read_tfrecords
from penstock.sources.tfrecord.columns import ExampleParser, Frames
from penstock.sources.tfrecord.features import feature_of
from penstock.sources.tfrecord.write import encode_example, encode_sequence_example, frame, write_records

tf = pytest.importorskip("tensorflow")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def rows_of(source) -> Block:
    if isinstance(source, RowSource):
        return source.decode(source.fetch(np.arange(source.num_rows())))
    return Block.concat([block for unit in range(source.num_units()) for block in source.open(unit)])


def read(path, *args, **options) -> Block:
    return rows_of(read_tfrecords(str(path), *args, **options).node.step.source)


def example(values) -> tf.train.Example:
    made = {}
    for name, (kind, items) in values.items():
        if kind == "float":
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=items))
        elif kind == "int":
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=items))
        else:
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=items))
    return tf.train.Example(features=tf.train.Features(feature=made))


def parsed(records, features, **options) -> Block:
    frames = [frame(r) for r in records]
    lengths = np.array([len(r) for r in records], np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths[:-1] + 16))).astype(np.int64)
    described = [feature_of(name, what, None) for name, what in features.items()]
    return ExampleParser(described, **options).block(
        Frames(np.frombuffer(b"".join(frames), np.uint8), offsets, lengths, lambda i: f"row {i}"), OnError()
    )


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_that_tensorflow_wrote(tmp_path, compression):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 7)).astype(np.float32), rng.integers(-9, 9, 500)
    with tf.io.TFRecordWriter(str(tmp_path / "a"), compression) as out:
        for i in range(500):
            out.write(example({"x": ("float", x[i]), "y": ("int", [y[i]])}).SerializeToString())
    block = read(tmp_path / "a", label="y")
    np.testing.assert_array_equal(block.columns["x"], x)
    np.testing.assert_array_equal(block.columns["y"], y)


def test_tensorflow_reads_what_we_wrote(tmp_path):
    samples = [{"f": np.arange(i % 3 + 1) / 2, "i": [-i, i << 40], "b": [b"%d" % i, b""], "t": "é"} for i in range(9)]
    for compress in (False, True):
        path = str(tmp_path / f"a{compress}")
        write_records(path, [encode_example(s) for s in samples], compress=compress)
        got = list(tf.data.TFRecordDataset(path, "GZIP" if compress else ""))
        assert len(got) == 9
        for sample, record in zip(samples, got, strict=True):
            feature = tf.train.Example.FromString(record.numpy()).features.feature
            assert list(feature["f"].float_list.value) == list(sample["f"])
            assert list(feature["i"].int64_list.value) == sample["i"]
            assert list(feature["b"].bytes_list.value) == sample["b"]
            assert feature["t"].bytes_list.value[0].decode() == "é"


ITEMS = {
    "float": st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    "int": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    "bytes": st.lists(st.binary(max_size=200), max_size=5),
}
KINDS = st.dictionaries(st.text(max_size=20), st.sampled_from(sorted(ITEMS)), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_examples_are_what_tensorflow_wrote(data):
    kinds = data.draw(KINDS)
    rows = data.draw(st.lists(st.fixed_dictionaries({n: ITEMS[k] for n, k in kinds.items()}), min_size=1, max_size=6))
    records = [example({n: (kinds[n], v) for n, v in row.items()}).SerializeToString() for row in rows]
    dtype = {"float": "float32", "int": "int64", "bytes": bytes}
    block = parsed(records, {n: (dtype[k], (None,)) for n, k in kinds.items()})
    for i, row in enumerate(rows):
        for name, wanted in row.items():
            assert list(column_value(block.columns[name], i)) == wanted


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_fixed_features_agree_with_parse_example(data):
    widths = data.draw(st.dictionaries(st.text(min_size=1, max_size=12), st.integers(1, 5), min_size=1, max_size=6))
    ints = data.draw(st.sets(st.sampled_from(sorted(widths))))
    n = data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    records, described = [], {}
    for name, width in widths.items():
        kind = tf.int64 if name in ints else tf.float32
        default = [7] * width if data.draw(st.booleans()) else None
        described[name] = tf.io.FixedLenFeature([width], kind, default)
    for _ in range(n):
        row = {}
        for name in (sorted(widths)[i] for i in rng.permutation(len(widths))):
            if described[name].default_value is None or rng.random() < 0.7:
                row[name] = (
                    ("int", rng.integers(-(2**62), 2**62, widths[name]))
                    if name in ints
                    else ("float", rng.normal(size=widths[name]))
                )
        records.append(example(row).SerializeToString())
    block = parsed(records, described)
    wanted = tf.io.parse_example(records, described)
    for name in widths:
        np.testing.assert_array_equal(block.columns[name], wanted[name].numpy())


def test_all_of_tensorflows_feature_objects():
    described = {
        "fixed": tf.io.FixedLenFeature([2], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string, default_value="none"),
        "open": tf.io.VarLenFeature(tf.int64),
        "ragged": tf.io.RaggedFeature(tf.float32),
        "pairs": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
    }
    full = {"fixed": ("float", [1, 2]), "text": ("bytes", [b"a"]), "open": ("int", [1, 2, 3]), "ragged": ("float", [4]),
            "pairs": ("int", [1, 2, 3, 4])}  # fmt: skip
    records = [example(full).SerializeToString(), example({"fixed": full["fixed"]}).SerializeToString()]
    block = parsed(records, described)
    assert block.columns["text"].to_pylist() == [b"a", b"none"]
    assert block.columns["open"].to_pylist() == [[1, 2, 3], []]
    assert block.columns["ragged"].to_pylist() == [[4], []]
    assert block.columns["pairs"].to_pylist() == [[[1, 2], [3, 4]], []]
    with pytest.raises(BadData, match="fixed"):
        parsed([example({}).SerializeToString()], described)
    with pytest.raises(InvalidInput, match="SparseFeature"):
        feature_of("s", tf.io.SparseFeature("i", "v", tf.float32, 10), None)
    with pytest.raises(InvalidInput, match="partitions"):
        feature_of("r", tf.io.RaggedFeature(tf.int64, partitions=[tf.io.RaggedFeature.RowSplits("k")]), None)


def test_unpacked_lists_and_repeated_entries():
    def delimited(tag, data):
        return bytes([tag, len(data)]) + data

    def entry(name, kind, values):
        return delimited(0x0A, delimited(0x0A, name) + delimited(0x12, delimited(kind, values)))

    floats = b"".join(b"\x0d" + np.float32(v).tobytes() for v in (1.5, 2.5))
    mixed = delimited(0x0A, np.float32([3.5]).tobytes()) + b"\x0d" + np.float32(4.5).tobytes()
    ints = b"\x08\x05\x08\x06"
    record = delimited(0x0A, entry(b"f", 0x12, floats) + entry(b"i", 0x1A, ints) + entry(b"f", 0x12, mixed))
    message = tf.train.Example.FromString(record)
    assert list(message.features.feature["f"].float_list.value) == [3.5, 4.5]
    block = parsed([record, record], {"f": ("float32", (2,)), "i": ("int64", (None,))})
    np.testing.assert_array_equal(block.columns["f"], [[3.5, 4.5]] * 2)
    assert block.columns["i"].to_pylist() == [[5, 6]] * 2


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=4), min_size=1, max_size=5))
def test_sequence_examples_that_tensorflow_wrote(rows, tmp_path):
    path = tmp_path / "s"
    with tf.io.TFRecordWriter(str(path)) as out:
        for i, steps in enumerate(rows):
            lists = {
                "s": tf.train.FeatureList(
                    feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for v in steps]
                )
            }
            context = tf.train.Features(feature={"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))})
            made = tf.train.SequenceExample(context=context, feature_lists=tf.train.FeatureLists(feature_list=lists))
            out.write(made.SerializeToString())
    block = read(path, {"id": tf.io.FixedLenFeature([], tf.int64)}, sequence={"s": tf.io.VarLenFeature(tf.int64)})
    assert block.columns["s"].to_pylist() == rows
    np.testing.assert_array_equal(block.columns["id"], np.arange(len(rows)))


def test_tensorflow_reads_our_sequences():
    record = encode_sequence_example({"n": 3}, {"f": [[1.0, 2.0], []], "w": [[b"a"], [b"b"]]})
    made = tf.train.SequenceExample.FromString(record)
    assert made.context.feature["n"].int64_list.value[0] == 3
    assert [list(f.float_list.value) for f in made.feature_lists.feature_list["f"].feature] == [[1, 2], []]
    assert [f.bytes_list.value[0] for f in made.feature_lists.feature_list["w"].feature] == [b"a", b"b"]

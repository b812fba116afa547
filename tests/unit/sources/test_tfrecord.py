"""TFRecord files: written and read by TensorFlow itself and by us, whole, damaged and hostile."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged, TooManyErrors
from penstock.core.source import RowSource, UnitSource
from penstock.read.tfrecord import read_tfrecords
from penstock.sources.records import span_index
from penstock.sources.tfrecord.write import encode_example, encode_sequence_example, frame, write_records


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def rows_of(source) -> Block:
    """All rows of a source of either kind, in order."""
    if isinstance(source, RowSource):
        return source.decode(source.fetch(np.arange(source.num_rows())))
    assert isinstance(source, UnitSource)
    return Block.concat([block for unit in range(source.num_units()) for block in source.open(unit)])


def read(path, *args, **options) -> Block:
    return rows_of(read_tfrecords(str(path), *args, **options).node.step.source)


def write(path, samples) -> str:
    write_records(str(path), [encode_example(s) for s in samples])
    return str(path)


def floats(n, width=4):
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, width)).astype(np.float32), rng.integers(-5, 1 << 40, n)


def table(path, n=1000):
    x, y = floats(n)
    return write(path, [{"x": x[i], "y": int(y[i])} for i in range(n)]), x, y


def test_a_label_makes_x_and_y(tmp_path):
    path, x, y = table(tmp_path / "a.tfrecord")
    block = read(path, label="y")
    assert block.tree == ("x", "y")
    np.testing.assert_array_equal(block.columns["x"], x)
    np.testing.assert_array_equal(block.columns["y"], y)


def test_scalar_features_become_one_matrix(tmp_path):
    x, y = floats(50, 3)
    path = write(tmp_path / "a", [{"a": x[i, 0], "b": x[i, 1:], "n": i, "y": int(y[i])} for i in range(50)])
    source = read_tfrecords(path, label="y").node.step.source
    assert str(source.schema()) == "(x: float32[4], y: int64)"
    np.testing.assert_array_equal(rows_of(source).columns["x"][:, :3], x)
    np.testing.assert_array_equal(rows_of(source).columns["x"][:, 3], np.arange(50))


def test_without_a_label_samples_are_dicts(tmp_path):
    path = write(tmp_path / "a", [{"f": 1.5, "i": [1, -2], "b": b"xy"}] * 3)
    block = read(path)
    assert block.tree == {"b": "b", "f": "f", "i": "i"}
    assert block.row(2)["b"] == b"xy"
    np.testing.assert_array_equal(block.columns["i"], [[1, -2]] * 3)
    assert block.columns["f"].dtype == np.float32


def test_lists_of_any_length(tmp_path):
    samples = [{"f": np.arange(i, dtype=float), "i": [-i] * i, "b": [b"%d" % i] * i, "k": i} for i in range(5)]
    block = read(write(tmp_path / "a", samples))
    assert block.columns["f"].to_pylist() == [list(range(i)) for i in range(5)]
    assert block.columns["i"].to_pylist() == [[-i] * i for i in range(5)]
    assert block.columns["b"].to_pylist() == [[b"%d" % i] * i for i in range(5)]


@pytest.mark.parametrize("access", ["rows", "units", "stream"])
def test_every_way_of_reading_gives_the_same(tmp_path, access):
    path, x, y = table(tmp_path / "a.tfrecord", 3000)
    source = read_tfrecords(path, label="y", access=access).node.step.source
    assert source.num_rows() == (None if access == "stream" else 3000)
    block = rows_of(pickle.loads(pickle.dumps(source)))
    np.testing.assert_array_equal(block.columns["x"], x)
    np.testing.assert_array_equal(block.columns["y"], y)
    assert [f.name for f in block.schema] == source.schema().names


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed_files_are_streamed(tmp_path, kind):
    path, x, _ = table(tmp_path / "a.tfrecord", 2000)
    data = Path(path).read_bytes()
    packed = gzip.compress(data[:999]) + gzip.compress(data[999:]) if kind == "GZIP" else zlib.compress(data)
    (tmp_path / "b").write_bytes(packed)
    np.testing.assert_array_equal(read(tmp_path / "b", label="y").columns["x"], x)
    with pytest.raises(InvalidInput, match="compressed"):
        read(tmp_path / "b", access="rows")


def test_a_stream_resumes_at_a_part(tmp_path):
    path = write(tmp_path / "a", [{"b": bytes(3000), "i": i} for i in range(9000)])
    source = read_tfrecords(path, access="stream").node.step.source
    blocks = list(source.open(0))
    assert len(blocks) > 2
    again = list(source.open(0, part=2))
    np.testing.assert_array_equal(again[0].columns["i"], blocks[2].columns["i"])
    assert len(again) == len(blocks) - 2


def test_units_are_stretches_that_cover_the_file(tmp_path):
    path = write(tmp_path / "a", [{"f": np.full(500, i, float)} for i in range(10000)])
    source = read_tfrecords(path, access="units").node.step.source
    assert source.num_units() >= 2
    sizes = [len(next(source.open(u))) for u in range(source.num_units())]
    assert sum(sizes) == source.num_rows() == 10000
    assert list(source.open(0, part=1)) == []
    assert source.unit_nbytes(0) < 64_000_000
    np.testing.assert_array_equal(rows_of(source).columns["f"][:, 0], np.arange(10000))


def test_rows_in_any_order_over_several_files(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.tfrecord", [{"v": ord(name) * 1000 + i} for i in range(20)])
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    source = read_tfrecords(str(tmp_path / "*.tfrecord"), access="rows").node.step.source
    order = np.random.default_rng(0).permutation(60)
    got = source.decode(source.fetch(order)).columns["v"]
    whole = rows_of(source).columns["v"]
    np.testing.assert_array_equal(got, whole[order])
    assert source.fetch_nbytes(10) > 0


def test_large_records_are_rows_and_small_ones_units(tmp_path):
    large = write(tmp_path / "a", [{"b": bytes(9000)}] * 4)
    small = write(tmp_path / "b", [{"b": bytes(90)}] * 4)
    assert isinstance(read_tfrecords(large).node.step.source, RowSource)
    assert isinstance(read_tfrecords(small).node.step.source, UnitSource)


def test_the_index_is_kept_and_follows_the_file(tmp_path, monkeypatch):
    path, *_ = table(tmp_path / "a.tfrecord", 10)
    assert read_tfrecords(path, access="rows").node.step.source.num_rows() == 10
    kept = os.listdir(tmp_path / "cache")
    assert len(kept) == 1
    walked = []
    monkeypatch.setattr(span_index, "_write", lambda *a: walked.append(a))
    assert read_tfrecords(path, access="rows").node.step.source.num_rows() == 10
    assert not walked
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    table(path, 11)
    assert read_tfrecords(path, access="rows").node.step.source.num_rows() == 11
    for name in os.listdir(tmp_path / "cache"):
        (tmp_path / "cache" / name).write_bytes(b"rubbish")
    assert read_tfrecords(path, access="rows").node.step.source.num_rows() == 11


def test_the_index_takes_12_bytes_a_record(tmp_path):
    path, *_ = table(tmp_path / "a.tfrecord", 5000)
    assert read_tfrecords(path, access="rows").node.step.source.num_rows() == 5000
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.stat().st_size < 5000 * 12 + 300


def test_fingerprint_follows_data_and_features(tmp_path):
    path, *_ = table(tmp_path / "a", 10)
    prints = {
        read_tfrecords(path, label="y").node.step.source.fingerprint(),
        read_tfrecords(path).node.step.source.fingerprint(),
    }
    assert read_tfrecords(path).node.step.source.fingerprint() in prints
    table(path, 11)
    prints.add(read_tfrecords(path).node.step.source.fingerprint())
    assert len(prints) == 3


# --- what users may write -------------------------------------------------------------------------------------------


def test_dtypes_and_shapes_as_given(tmp_path):
    picture = np.arange(12, dtype=np.uint8).reshape(3, 4)
    samples = [{"f": [1.0, 2, 3, 4], "i": 200, "t": "täxt", "raw": picture.tobytes(), "n": 1, "v": [1.0, 2.0]}] * 2
    block = read(
        write(tmp_path / "a", samples),
        {
            "f": ("float64", (2, 2)),
            "i": "uint8",
            "t": str,
            "raw": ("uint8", (3, 4)),
            "n": bool,
            "v": ("float32", (None,)),
        },
    )
    np.testing.assert_array_equal(block.columns["f"], [[[1, 2], [3, 4]]] * 2)
    assert block.columns["f"].dtype == np.float64 and block.columns["i"].dtype == np.uint8
    np.testing.assert_array_equal(block.columns["raw"][1], picture)
    row = block.row(1)
    assert row["t"] == "täxt" and row["n"] and row["i"] == 200
    assert block.columns["v"].to_pylist() == [[1, 2]] * 2
    assert str(block.schema["f"]) == "f: float64[2, 2]"


def test_integers_asked_for_as_floats(tmp_path):
    block = read(write(tmp_path / "a", [{"i": 3}]), {"i": "float32"})
    assert block.columns["i"].dtype == np.float32 and block.columns["i"][0] == 3


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"i": "complex64"}, "cannot be stored"),
        ({"i": object()}, "not a dtype"),
        ({"i": bytes}, "hold integers"),
        ({"f": "int64"}, "hold floats"),
        ({"f": ("float32", (2, None))}, "first axis"),
        (["nothing"], "none of the first records"),
        ({}, "no feature"),
    ],
)
def test_mistakes_are_explained(tmp_path, features, message):
    path = write(tmp_path / "a", [{"i": 3, "f": 1.0}])
    with pytest.raises(InvalidInput, match=message):
        read(path, features)


def test_calls_that_make_no_sense(tmp_path):
    path = write(tmp_path / "a", [{"i": 3, "f": 1.0}])
    for options in ({"parse": "xml"}, {"access": "maybe"}, {"compression": "rar"}, {"max_record": "5GB"},
                    {"parse": None, "label": "i"}, {"images": "i"}, {"label": ["i", "f"]}):  # fmt: skip
        with pytest.raises(InvalidInput):
            read_tfrecords(path, **options)
    with pytest.raises(NotFound, match="label='z'"):
        read_tfrecords(path, label="z")
    with pytest.raises(NotFound, match="images='z'"):
        read_tfrecords(path, images="z")
    (tmp_path / "none").write_bytes(b"")
    with pytest.raises(NotFound, match="empty"):
        read_tfrecords(str(tmp_path / "none"))


def test_raw_records(tmp_path):
    records = [b"", b"anything", bytes(5000)]
    write_records(str(tmp_path / "a"), records)
    block = read(tmp_path / "a", parse=None)
    assert block.tree == "record"
    assert [block.row(i)["record"] for i in range(3)] == records


def test_images_are_decoded_and_resized(tmp_path):
    image = np.zeros((40, 50, 3), np.uint8)
    image[:, 25:] = 255
    _, png = cv2.imencode(".png", image)
    path = write(tmp_path / "a", [{"image/encoded": png.tobytes(), "image/class/label": i} for i in range(3)])
    source = read_tfrecords(path, images="image/encoded", label="image/class/label", size=(20, 30)).node.step.source
    assert isinstance(source, RowSource)
    assert str(source.schema()) == "(x: uint8[20, 30, 3], y: int64)"
    block = rows_of(source)
    assert block.columns["x"].shape == (3, 20, 30, 3)
    assert block.columns["x"][0, 5, 2, 0] == 0 and block.columns["x"][0, 5, 29, 0] == 255
    out = {"x": np.zeros((3, 20, 30, 3), np.uint8), "y": np.zeros(3, np.int64)}
    source.decode_into(source.fetch(np.array([2, 0, 1])), out)
    np.testing.assert_array_equal(out["y"], [2, 0, 1])
    np.testing.assert_array_equal(out["x"][1], block.columns["x"][0])
    whole = read(path, images={"image/encoded": {"mode": "gray"}})
    assert whole.columns["image/encoded"][0].shape == (40, 50, 1)


def test_sequence_examples(tmp_path):
    records = [
        encode_sequence_example(
            {"id": i},
            {"tokens": [[t] for t in range(i)], "pairs": [[1.0, 2.0]] * 2, "words": [[b"a"] * t for t in range(i)]},
        )
        for i in range(1, 5)
    ]
    write_records(str(tmp_path / "a"), records)
    block = read(tmp_path / "a")
    np.testing.assert_array_equal(block.columns["id"], [1, 2, 3, 4])
    assert block.columns["tokens"].to_pylist() == [list(range(i)) for i in range(1, 5)]
    assert block.columns["pairs"].to_pylist() == [[[1, 2]] * 2] * 4
    assert block.columns["words"].to_pylist() == [[[b"a"] * t for t in range(i)] for i in range(1, 5)]
    only = read(tmp_path / "a", sequence={"tokens": "int32"})
    assert list(only.columns) == ["tokens"] and only.columns["tokens"].type == pa.large_list(pa.int32())


# --- damage ---------------------------------------------------------------------------------------------------------


def damaged(path, at, value=None):
    data = bytearray(Path(path).read_bytes())
    data[at] = data[at] ^ 0xFF if value is None else value
    Path(path).write_bytes(data)


def test_a_flipped_bit_is_caught_and_only_its_record_lost(tmp_path):
    path, _, _ = table(tmp_path / "a.tfrecord", 100)
    size = os.path.getsize(path) // 100
    damaged(path, 50 * size + 30)
    with pytest.raises(BadData, match=r"byte [0-9]+: the record does not match its checksum"):
        read(path, label="y")
    source = read_tfrecords(path, label="y", on_error="skip").node.step.source
    assert len(rows_of(source)) == 99
    assert source.on_error.count == 1
    assert len(rows_of(read_tfrecords(path, parse=None, on_error="skip").node.step.source)) == 99


@pytest.mark.parametrize("access", ["rows", "units", "stream"])
def test_a_length_that_cannot_be_trusted_ends_the_file(tmp_path, access):
    path, _, _ = table(tmp_path / "a.tfrecord", 200)
    data = Path(path).read_bytes()
    first = len(frame(b"")) + struct.unpack("<Q", data[:8])[0]
    for hostile in (struct.pack("<Q", 1 << 60), b"\xff" * 8):
        broken = data[:first] + hostile + data[first + 8 :]
        Path(path).write_bytes(broken)
        with pytest.raises(BadData, match=f"byte {first}: the length of a record does not match"):
            read(path, label="y", access=access)
        source = read_tfrecords(path, label="y", access=access, on_error="skip").node.step.source
        assert len(rows_of(source)) == 1 and source.on_error.count == 1
        unchecked = read_tfrecords(path, label="y", access=access, on_error="skip", check_crc=False).node.step.source
        assert len(rows_of(unchecked)) == 1
        assert "max_record" in str(unchecked.on_error.last)


def test_a_file_cut_short(tmp_path):
    path, _, _ = table(tmp_path / "a.tfrecord", 20)
    os.truncate(path, os.path.getsize(path) - 3)
    with pytest.raises(BadData, match="ends in the middle of a record"):
        read(path, label="y")
    assert len(read(path, label="y", on_error="skip")) == 19


def test_too_many_errors(tmp_path):
    path, *_ = table(tmp_path / "a.tfrecord", 100)
    step = os.path.getsize(path) // 100
    for i in range(10):
        damaged(path, i * 9 * step + 40)
    with pytest.raises(TooManyErrors):
        read(path, {"x": ("float32", (4,))}, on_error="skip", max_errors=2)


def test_compressed_damage(tmp_path):
    path, *_ = table(tmp_path / "a.tfrecord", 5000)
    packed = gzip.compress(Path(path).read_bytes())
    (tmp_path / "b").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadData, match="ends too early"):
        read(tmp_path / "b", label="y")
    assert 1000 < len(read(tmp_path / "b", label="y", on_error="skip")) < 5000


def test_a_bomb_is_refused_without_being_inflated(tmp_path):
    header = struct.pack("<Q", 1 << 40)
    bomb = gzip.compress(header + bytes(4) + bytes(200_000_000), 1)
    (tmp_path / "b").write_bytes(bomb)
    with pytest.raises(BadData, match="max_record"):
        read(tmp_path / "b", parse=None, check_crc=False)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"f": [1.0], "i": 1}, "expected 2 values"),
        ({"f": [1.0, 2.0]}, "'i' is missing"),
        ({"f": [1, 2], "i": 1}, "does not hold floats"),
    ],
)
def test_a_record_that_differs_is_named(tmp_path, odd, message):
    path = write(tmp_path / "a", [{"f": [1.0, 2.0], "i": 1}] * 100 + [odd])
    with pytest.raises(BadData, match=message):
        read(path)
    assert len(read(path, on_error="skip")) == 100


def test_damage_inside_lists(tmp_path):
    path = write(tmp_path / "a", [{"t": "good", "n": 7}] * 100 + [{"t": b"\xff", "n": 7}, {"t": "x", "n": 300}])
    block = read(path, {"t": str, "n": "uint8"}, on_error="skip")
    assert len(block) == 100
    with pytest.raises(BadData, match="UTF-8"):
        read(path, {"t": str})
    with pytest.raises(BadData, match="uint8 cannot hold"):
        read(path, {"n": "uint8"})


def test_kinds_that_change_within_the_first_records(tmp_path):
    with pytest.raises(SchemaChanged, match="floats and integers"):
        read(write(tmp_path / "a", [{"v": 1.0}, {"v": 1}]))


def test_records_that_are_no_examples(tmp_path):
    write_records(str(tmp_path / "a"), [b"\xff\xff\xff"] * 3)
    with pytest.raises(BadData, match="parse=None"):
        read(tmp_path / "a")


def test_steps_of_one_length_are_one_array_of_numbers(tmp_path):
    steps = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0], [2.0, 3.0]]]
    (tmp_path / "a.tfrecord").write_bytes(
        b"".join(frame(encode_sequence_example({}, {"t": [np.float32(s) for s in one]})) for one in steps)
    )
    even, uneven = (row["t"] for row in read_tfrecords(tmp_path / "a.tfrecord"))
    assert even.dtype == np.float32
    assert even.tolist() == steps[0]
    assert [step.tolist() for step in uneven] == steps[1]

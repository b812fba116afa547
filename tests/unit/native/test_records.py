"""Checksums, frames and Examples: the same as a few lines of Python, at every level, never a byte outside."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.core.wire_format import delimited, varint
from penstock.native import tfrecord
from penstock.native.crc32c import crc32c, crc32c_of_stretches, masked_crc32c
from penstock.native.example import lists
from penstock.native.example import read as example
from penstock.native.example.write import encode_block
from penstock.native.library import forced
from penstock.sources.tfrecord.write import encode_example, encode_sequence_example, frame
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

SIDES = ("start", "end")
BYTES, FLOAT, INT = 1, 2, 3


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param):
        yield request.param


def reference_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_standard_vectors() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43
    assert masked_crc32c(b"") == 0xA282EAD8


@pytest.mark.parametrize("side", SIDES)
def test_checksums_of_every_length(side: str) -> None:
    data = random.Random(1).randbytes(13_000)
    for length in [*range(0, 40), 127, 383, 384, 385, 767, 3071, 3072, 3073, 12_287, 12_289]:
        assert crc32c(guarded(data[:length], side)) == reference_crc(data[:length]), length


def test_sums_of_neighbouring_stretches_are_those_of_each():
    data = np.random.default_rng(3).integers(0, 256, 5_000).astype(np.uint8)
    ends = np.array([0, 0, 7, 1_000, 1_000, 4_321, 5_000])
    parts = np.split(data, ends[:-1])
    assert crc32c_of_stretches(data, ends).tolist() == [crc32c(part.tobytes()) for part in parts]
    assert crc32c_of_stretches(data[:0], np.zeros(0, np.int64)).tolist() == []
    for wrong in ([10, 9], [5_001], [-1]):
        with pytest.raises(IndexError, match=f"stretch {len(wrong) - 1}"):
            crc32c_of_stretches(data, np.array(wrong))


def reference_walk(data: bytes, left: int, longest: int) -> tuple[list[tuple[int, int]], int, int]:
    found, place = [], 0
    while place < left:
        if place + 12 > left:
            return found, place, tfrecord.TRUNCATED
        if place + 12 > len(data):
            break
        (length,) = struct.unpack_from("<Q", data, place)
        if length > longest:
            return found, place, tfrecord.TOO_LONG
        if place + 16 + length > left:
            return found, place, tfrecord.TRUNCATED
        found.append((place, length))
        place += 16 + length
    return found, place, tfrecord.OK


@pytest.mark.parametrize("side", SIDES)
def test_frames_are_found_as_python_finds_them(side: str) -> None:
    chance = random.Random(3)
    whole = b"".join(frame(chance.randbytes(n)) for n in (0, 1, 30, 0, 200, 7))
    offsets, lengths = np.zeros(20, np.int64), np.zeros(20, np.int64)
    for _ in range(300):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        if data and chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        left = len(data) if chance.random() < 0.5 else tfrecord.UNKNOWN
        found, after, code = tfrecord.walk(guarded(bytes(data), side), left, False, 1000, offsets, lengths)
        spans = list(zip(offsets[:found].tolist(), lengths[:found].tolist(), strict=True))
        assert (spans, after, code) == reference_walk(bytes(data), left, 1000)


def test_a_damaged_length_and_a_damaged_record_are_told_apart() -> None:
    data, offsets, lengths = bytearray(frame(b"abc") + frame(b"defg")), np.zeros(4, np.int64), np.zeros(4, np.int64)
    data[13] ^= 1
    buf = guarded(bytes(data))
    assert tfrecord.walk(buf, len(buf), True, 100, offsets, lengths) == (2, len(buf), tfrecord.OK)
    assert tfrecord.check_records(buf, offsets[:2], lengths[:2], True).tolist() == [tfrecord.BAD_CHECKSUM, tfrecord.OK]
    data[20] ^= 1
    assert tfrecord.walk(guarded(bytes(data)), len(data), True, 100, offsets, lengths)[::2] == (1, tfrecord.BAD_LENGTH)


@pytest.mark.parametrize(("offset", "length"), [(-1, 3), (0, -1), (0, 4), (3, 3), (2**62, 1), (0, 2**62)])
def test_frames_outside_of_the_buffer_are_truncated(offset: int, length: int) -> None:
    buf = guarded(frame(b"abc"))
    codes = tfrecord.check_records(buf, np.array([offset]), np.array([length]), True)
    assert codes.tolist() == [tfrecord.TRUNCATED]


NAMES = [b"x", b"n", b"k", b"t", b"steps"]
SPECS = np.array([
    [FLOAT, 3, 0, 4, 0, 0, 0],
    [INT, 1, 3, 4, 1, 0, 0],
    [INT, 2, 0, 2, 0, 1, 0],
    [BYTES, -1, 0, 0, 0, 1, 0],
    [INT, -1, 1, 0, 0, 1, 1],
])  # fmt: skip


def parsed(records: list[bytes], side: str = "end", check: bool = True) -> tuple[example.Output, np.ndarray]:
    frames = [frame(record) for record in records]
    sizes = np.array([len(f) for f in frames], np.int64)
    buf = guarded(b"".join(frames), side)
    rows = len(records)
    out = example.Output(
        guarded(16 * rows, side).view(np.float32), guarded(16 * rows, side).view(np.int64),
        np.tile(np.array([-1, 0]), (rows, 2, 1)), guarded(8 * rows, side).view(np.int64),
        guarded(8 * rows, side).view(np.int64),
    )  # fmt: skip
    plan = example.Plan(example.names_of(NAMES), SPECS, check, sequence=True)
    bad = example.parse(buf, np.cumsum(sizes) - sizes, sizes - 16, plan, out)
    assert bad == np.count_nonzero(out.codes)
    return out, buf


def sample(i: int) -> bytes:
    step = {"steps": [[i], [], [i, 2]]} if i % 2 else {}
    context = {"x": [i, 0.5, -1], "other": "not wanted" * i, "n": i * 1000, "k": [i, -i], "t": b"text" * i}
    return encode_sequence_example(context, step)


@pytest.mark.parametrize("side", SIDES)
def test_examples_become_rows(side: str) -> None:
    out, buf = parsed([sample(i) for i in range(1, 40)], side)
    i = np.arange(1, 40)
    assert not out.codes.any()
    assert np.array_equal(out.floats.reshape(-1, 4), np.stack([i, 0 * i + 0.5, 0 * i - 1, i * 1000], 1).astype("f4"))
    assert np.array_equal(out.ints.reshape(-1, 2), np.stack([i, -i], 1))
    texts = lists.locate_bytes(buf, out.spans[:, 0], np.arange(40))
    assert [bytes(buf[s : s + n]) for s, n in texts] == [b"text" * k for k in i]
    assert (out.spans[:, 1, 0] >= 0).tolist() == (i % 2 == 1).tolist()
    counts, codes = lists.count_steps(buf, out.spans[:, 1], INT)
    assert not codes.any() and counts.tolist() == [3 if k % 2 else 0 for k in i]
    steps = lists.locate_steps(buf, out.spans[:, 1], np.concatenate([[0], np.cumsum(counts)]))
    sizes = lists.count_values(buf, steps, INT)
    values = lists.write_ints(buf, steps, np.concatenate([[0], np.cumsum(sizes)]))
    assert values.tolist() == [v for k in i if k % 2 for v in (k, k, 2)]


def feature(name: bytes, kind: int, payload: bytes) -> bytes:
    return delimited(1, delimited(1, name) + delimited(2, delimited(kind, payload)))


def test_lists_that_are_not_packed_are_the_same_lists() -> None:
    floats = b"".join(b"\x0d" + struct.pack("<f", v) for v in (1, 2, 3))
    record = delimited(
        1,
        feature(b"x", FLOAT, floats) + feature(b"n", INT, b"\x08\x07") + feature(b"k", INT, b"\x08\x05\x0a\x01\x06"),
    )
    out, _ = parsed([record])
    assert out.floats.tolist() == [1, 2, 3, 7] and out.ints.tolist() == [5, 6] and out.codes.tolist() == [tfrecord.OK]


@pytest.mark.parametrize(("features", "code", "at"), [
    ({"x": [1.0, 2, 3]}, tfrecord.MISSING, 1),
    ({"x": [1.0, 2], "n": 1}, tfrecord.WRONG_COUNT, 0),
    ({"x": [1.0, 2, 3, 4], "n": 1}, tfrecord.WRONG_COUNT, 0),
    ({"x": [1, 2, 3], "n": 1}, tfrecord.WRONG_KIND, 0),
    ({"x": [1.0, 2, 3], "n": 1, "k": [1, 2, 3]}, tfrecord.WRONG_COUNT, 2),
])  # fmt: skip
def test_what_is_wrong_is_named(features: dict[str, object], code: int, at: int) -> None:
    out, _ = parsed([sample(1), encode_example(features), sample(3)])
    assert out.codes.tolist() == [0, code, 0] and out.features[1] == at


def test_a_value_that_is_announced_must_be_there() -> None:
    record = delimited(1, feature(b"x", FLOAT, b"\x0a\x0c" + bytes(12)) + feature(b"n", INT, b"\x08\x07\x08"))
    assert parsed([record])[0].codes.tolist() == [tfrecord.BAD_WIRE]


@pytest.mark.parametrize("side", SIDES)
def test_damaged_records_are_refused_and_never_left(side: str) -> None:
    """Guard pages on both sides of everything; what a record says does not depend on the records before it."""
    chance, seen = random.Random(11), set()
    for _ in range(120):
        records = []
        for i in range(4):
            record = bytearray(sample(i + 1))
            for _ in range(chance.choice((0, 1, 2))):
                record[chance.randrange(len(record))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            records.append(bytes(record[: chance.choice((len(record), chance.randrange(1, len(record) + 1)))]))
        out, buf = parsed(records, side)
        seen |= set(out.codes.tolist())
        for i, record in enumerate(records):
            alone, _ = parsed([record], side)
            assert out.codes[i] == alone.codes[0]
            if not out.codes[i]:
                assert out.floats[4 * i : 4 * i + 4].tobytes() == alone.floats.tobytes()
                assert out.ints[2 * i : 2 * i + 2].tobytes() == alone.ints.tobytes()
        for kind in (BYTES, FLOAT, INT):
            counts = np.maximum(lists.count_values(buf, out.spans[:, 0], kind), 0)
            offsets = np.concatenate([[0], np.cumsum(counts)])
            write = {
                BYTES: lists.locate_bytes,
                FLOAT: lists.write_floats,
                INT: lists.write_ints,
            }
            assert len(write[kind](buf, out.spans[:, 0], offsets)) == offsets[-1]
    assert {tfrecord.OK, tfrecord.BAD_WIRE, tfrecord.MISSING, tfrecord.WRONG_COUNT} <= seen


@pytest.mark.parametrize("pair", [(0, 2**62), (2**62, 1), (5, 6), (3, -2)])
def test_lists_outside_of_the_buffer_are_damaged(pair: tuple[int, int]) -> None:
    buf, spans = guarded(bytes(10)), np.array([pair])
    assert lists.count_values(buf, spans, INT).tolist() == [-1]
    assert lists.count_steps(buf, spans, INT)[1].tolist() == [tfrecord.BAD_WIRE]
    for write in (lists.write_floats, lists.write_ints, lists.locate_bytes):
        with pytest.raises(InvalidInput):
            write(buf, spans, np.array([0, 1]))
    with pytest.raises(InvalidInput):
        lists.gather_bytes(buf, spans, np.array([0]), np.zeros(100, np.uint8))


def test_a_plan_that_does_not_fit_the_arrays_is_refused() -> None:
    names, buf = example.names_of([b"x"]), guarded(frame(encode_example({"x": [1.0]})))
    for spec in ([FLOAT, 2, 0, 1, 0, 0, 0], [FLOAT, 1, -1, 1, 0, 0, 0], [INT, 1, 0, 1, 0, 0, 0],
                 [FLOAT, 1, 0, 2**62, 0, 0, 0], [BYTES, -1, 0, 0, 0, 0, 0], [BYTES, 1, 0, 0, 0, 0, 0]):  # fmt: skip
        out = example.output(2, floats=2, ints=0, spans=0)
        at, size = np.zeros(2, np.int64), np.full(2, len(buf) - 16)
        with pytest.raises(InvalidInput):
            example.parse(buf, at, size, example.Plan(names, np.array([spec]), True, False), out)


def test_blocks_are_written_as_single_rows_are() -> None:
    rng = np.random.default_rng(5)
    columns = {
        "f": rng.normal(size=(50, 4)).astype(np.float32),
        "i": rng.integers(-(2**63), 2**63 - 1, (50, 3)),
        "u": rng.integers(0, 2**63, 50).astype(np.uint64) * 2 + 1,
        "b": rng.integers(0, 2, 50).astype(bool),
        "t": np.array(["é" * int(k) for k in rng.integers(0, 90, 50)], object),
        "raw": np.array([bytes(int(k)) for k in rng.integers(0, 20_000, 50)], object),
        "long" * 60: np.arange(50, dtype=np.uint8),
    }
    rows = [{name: column[row] for name, column in columns.items()} for row in range(50)]
    assert encode_block(columns) == [frame(encode_example(row)) for row in rows]


def test_widths_of_numbers_at_their_edges() -> None:
    numbers = np.array([0, *(2 ** (7 * k) - 1 for k in range(1, 10)), *(2 ** (7 * k) for k in range(1, 10)), 2**64 - 1],
                       np.uint64)  # fmt: skip
    found = encode_block({"n": numbers})
    assert found is not None
    for number, record in zip(numbers.tolist(), found, strict=True):
        assert record.endswith(varint(number) + record[-4:])

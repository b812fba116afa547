"""Mutated TFRecord files: an error of ours or a counted skip, never a crash, a hang or a wild allocation.

PENSTOCK_FUZZ sets the number of inputs (10,000 unless told).
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROWTH, ROUNDS, TIMEOUT_S, TOGETHER, peak, read_together, start_peak

from penstock.core.errors import PenstockError
from penstock.core.source import OnError
from penstock.native.tfrecord import walk
from penstock.read.tfrecord import read_tfrecords
from penstock.sources.tfrecord.columns import ExampleParser, Frames
from penstock.sources.tfrecord.features import feature_of
from penstock.sources.tfrecord.write import encode_example, encode_sequence_example, frame

GIVEN = {"x": ("float32", (6,)), "n": ("int64", (None,)), "b": (bytes, (None,)), "t": str, "y": "int32"}


def records() -> list[bytes]:
    rng = np.random.default_rng(0)
    made = [
        encode_example({"x": rng.normal(size=6), "n": [1, 2, 1 << 50], "b": [b"abc", b""], "t": "text", "y": i})
        for i in range(6)
    ]
    return made + [encode_sequence_example({"y": 1}, {"s": [[1], [2, 3], []], "w": [[b"a"], [b"b", b"c"]]})] * 2


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(6)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out[at : at + 8] = struct.pack("<Q", rng.choice((1 << 60, 1 << 63, (1 << 64) - 1, 1 << 31, 0)))
        elif kind == 3:
            out[at : at + 10] = b"\xff" * rng.randrange(1, 11)
        elif kind == 4:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
        else:
            out[at] = rng.randrange(256)
    return bytes(out)


def parser(check: bool) -> ExampleParser:
    found = [feature_of(name, what, None) for name, what in GIVEN.items()]
    lists = [
        feature_of("s", ("int64", (None,)), None, listed=True),
        feature_of("w", (bytes, (None,)), None, listed=True),
    ]
    return ExampleParser(found + lists, check=check)


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_stretches_parse_or_are_skipped():
    """The kernels and columns on mutated buffers, mostly with checksums off, so that damage reaches the parser."""
    rng = random.Random(7)
    plain = records()
    data = b"".join(frame(r) for r in plain)
    offsets, lengths = np.zeros(64, np.int64), np.zeros(64, np.int64)
    parsers = {check: parser(check) for check in (True, False)}
    skipped = kept = 0
    parsers[False].block(
        Frames(np.frombuffer(data, np.uint8), offsets[:1], np.array([len(plain[0])]), str), OnError("skip")
    )
    before = start_peak()
    for _ in range(ROUNDS):
        check = rng.random() < 0.2
        if rng.random() < 0.5:  # the frame stays whole, the record is damaged
            broken = b"".join(frame(mutated(r, rng)) for r in rng.sample(plain, 3))
        else:
            broken = mutated(data, rng)
        buf = np.frombuffer(broken, np.uint8)
        found, _, _ = walk(buf, len(buf), check, 1 << 30, offsets, lengths)
        policy = OnError("skip")
        block = parsers[check].block(Frames(buf, offsets[:found], lengths[:found], str), policy)
        assert len(block) + policy.count == found
        skipped, kept = skipped + policy.count, kept + len(block)
    assert skipped > ROUNDS // 10
    assert peak() - before < GROWTH


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_files_through_the_public_reader(tmp_path, monkeypatch):
    """Every way to read, with and without checksums, on datasets of mutated files, a third of them compressed."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    rng = random.Random(13)
    plain = b"".join(frame(r) for r in records()[:6])
    ways = [(access, packed) for access in ("rows", "units", "stream") for packed in (False, access == "stream")]
    before = start_peak()
    read = skipped = 0
    for round_ in range(-(-ROUNDS // TOGETHER)):
        access, packed = ways[round_ % len(ways)]
        data = gzip.compress(plain, 1) if packed else plain
        options = {"access": access, "compression": "auto" if packed else None, "check_crc": rng.random() < 0.5}
        rows, bad = read_together(
            tmp_path / "files",
            (mutated(data, rng) for _ in range(TOGETHER)),
            ".tfrecord",
            lambda folder, options=options: (
                read_tfrecords(folder, GIVEN, on_error="skip", max_record="10MB", **options).node.step.source
            ),
        )
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        read, skipped = read + rows, skipped + bad
    assert read > ROUNDS and skipped > ROUNDS // 2
    assert peak() - before < GROWTH


@pytest.mark.parametrize("share", [0.05])
def test_mutated_files_for_themselves(tmp_path, monkeypatch, share):
    """A file alone: guessed features, the first error raised or all skipped."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    rng = random.Random(11)
    plain = b"".join(frame(r) for r in records()[:6])
    path = tmp_path / "a.tfrecord"
    before = start_peak()
    read = failed = 0
    for round_ in range(max(100, int(ROUNDS * share))):
        packed = rng.random() < 0.3
        path.write_bytes(mutated(gzip.compress(plain, 1) if packed else plain, rng))
        os.utime(path, ns=(round_, round_))  # the index goes by size and time, which may not differ otherwise
        options = {"on_error": rng.choice(("raise", "skip")), "check_crc": rng.random() < 0.5, "max_record": "10MB"}
        if rng.random() < 0.3:
            options["parse"] = None
        try:
            source = read_tfrecords(str(path), access=rng.choice(("auto", "stream")), **options).node.step.source
            read += sum(len(block) for unit in range(source.num_units()) for block in source.open(unit))
        except PenstockError:
            failed += 1
        for kept in (tmp_path / "cache").glob("*"):
            kept.unlink()
    assert read > 0 and failed > 0
    assert peak() - before < GROWTH

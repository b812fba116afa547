"""Mutated tar files: an error of ours or a counted skip, never a crash, a hang or a wild allocation.

PENSTOCK_FUZZ sets the number of inputs (10,000 unless told).
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import shutil
import sys
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROWTH, ROUNDS, TIMEOUT_S, TOGETHER, peak, read_together, start_peak

from penstock.core.errors import PenstockError
from penstock.core.source import OnError
from penstock.read.webdataset import read_webdataset
from penstock.sources.images.column import Pictures
from penstock.sources.images.decode import ImageOptions
from penstock.sources.tar.columns import KINDS, SampleParser, columns_of, sample_of
from penstock.sources.tar.index import Intact, MemoryReader, StreamReader, TarError, grouped, members

LONGEST = 1_000_000


def archive(fmt: int) -> bytes:
    out = io.BytesIO()
    npy = io.BytesIO()
    np.save(npy, np.zeros((2, 3), np.float32))
    png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    folder = "long/" * 40 if fmt != tarfile.USTAR_FORMAT else "d/"
    with tarfile.open(fileobj=out, mode="w", format=fmt) as tar:
        for i in range(3):
            for extension, data in (("cls", b"1"), ("json", json.dumps({"a": i}).encode()), ("npy", npy.getvalue()),
                                    ("png", png), ("txt", b"text")):  # fmt: skip
                entry = tarfile.TarInfo(f"{folder}{i}.{extension}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not out:
            break
        block = rng.randrange(len(out) // 512 + 1) * 512
        at = rng.randrange(len(out))
        kind = rng.randrange(7)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out[at] = rng.randrange(256)
        elif kind == 3:
            del out[block : block + 512]
        elif kind == 4:
            out[at : at + 12] = rng.choice((b"77777777777\0", b"\x80" + b"\xff" * 11, b"99999999999\0", b"-1 " * 4))
        else:
            resealed(out, block, rng)
    return bytes(out)


def resealed(out: bytearray, block: int, rng: random.Random) -> None:
    """TarError a header and give it a checksum that fits, as an attacker would."""
    if block + 512 > len(out):
        return
    field = rng.choice(((124, 136), (156, 157), (0, 100), (345, 500)))
    for _ in range(3):
        out[block + rng.randrange(*field)] = rng.choice(b"\0\x7f\x80\xff01579Lxgk./")
    out[block + 148 : block + 156] = b" " * 8
    out[block + 148 : block + 156] = b"%06o\0 " % sum(out[block : block + 512])


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_archives_are_read_or_refused():
    """Walking, grouping and decoding in memory and as a stream of small pieces: both find the same samples."""
    rng = random.Random(5)
    whole = [archive(fmt) for fmt in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    first = [sample_of(k, g, "", "1 MB") for k, g in grouped(members(MemoryReader(whole[0]), longest=LONGEST))]
    pictures = Pictures(ImageOptions(size=(4, 4), max_pixels=10_000))
    parser = SampleParser(columns_of(None, first, KINDS, lambda name: pictures), "cls")
    parser.block(first, OnError())
    before = start_peak()
    kept = skipped = ended = 0
    for _ in range(ROUNDS):
        data = mutated(rng.choice(whole), rng)
        walk = Intact(members(MemoryReader(data), nbytes=len(data), longest=LONGEST))
        found = [sample_of(k, g, "", "1 MB") for k, g in grouped(walk, LONGEST)]
        policy = OnError("skip")
        block = parser.block(found, policy)
        assert len(block) + policy.count == len(found)
        kept, skipped, ended = kept + len(block), skipped + policy.count, ended + (walk.damage is not None)
        if rng.random() < 0.2:
            pieces = iter([data[i : i + 700] for i in range(0, len(data), 700)])
            streamed = Intact(members(StreamReader(pieces), longest=LONGEST))
            again = [k for k, _ in grouped(streamed, LONGEST)]
            assert again == [s.key for s in found]
            assert isinstance(streamed.damage, TarError | None)
    assert kept and skipped > ROUNDS // 50 and ended > ROUNDS // 20
    assert peak() - before < GROWTH


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_files_through_the_public_reader(tmp_path, monkeypatch):
    """Rows and streams over datasets of mutated archives, a quarter of them compressed before the damage."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    rng = random.Random(17)
    whole = [archive(fmt) for fmt in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    before = start_peak()
    read = skipped = 0
    for round_ in range(-(-ROUNDS // TOGETHER)):
        packed = round_ % 4 == 3
        kinds = [gzip.compress(data, 1) for data in whole] if packed else whole
        access = "stream" if packed or round_ % 4 == 2 else "rows"
        rows, bad = read_together(
            tmp_path / "files",
            itertools.chain(kinds[:1], (mutated(rng.choice(kinds), rng) for _ in range(TOGETHER))),
            ".tar",
            lambda folder, access=access: (
                read_webdataset(
                    folder, sample=("png", "cls"), size=4, access=access, on_error="skip", max_sample=LONGEST
                ).node.step.source
            ),
        )
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        read, skipped = read + rows, skipped + bad
    assert read > ROUNDS and skipped > ROUNDS // 4
    assert peak() - before < GROWTH


def test_mutated_files_for_themselves(tmp_path, monkeypatch):
    """A file alone: guessed columns, the first error raised or all skipped."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    rng = random.Random(3)
    plain = archive(tarfile.GNU_FORMAT)
    path = tmp_path / "a.tar"
    before = start_peak()
    read = failed = 0
    for round_ in range(ROUNDS // 20):
        path.write_bytes(gzip.compress(mutated(plain, rng), 1) if rng.random() < 0.2 else mutated(plain, rng))
        os.utime(path, ns=(round_, round_))
        try:
            policy = rng.choice(("raise", "skip"))
            source = read_webdataset(str(path), on_error=policy, max_sample=LONGEST).node.step.source
            if hasattr(source, "fetch"):
                read += len(source.decode(source.fetch(np.arange(source.num_rows()))))
            else:
                read += sum(len(block) for block in source.open(0))
        except PenstockError:
            failed += 1
        for kept in (tmp_path / "cache").glob("*"):
            kept.unlink()
    assert read > 0 and failed > 0
    assert peak() - before < GROWTH

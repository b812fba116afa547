"""A cache and a write on a disk that is really full."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.core.events import events
from penstock.read import from_tensor_slices
from tests.contract.chains import elements, rows, units


@pytest.fixture
def small_disk(tmp_path: Path):
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], capture_output=True)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def wide(x):
    return np.full(1000, x, dtype=np.int64)


@pytest.mark.parametrize("make", [lambda: rows(600), lambda: units((50,) * 12, 10)])
def test_a_cache_goes_on_without_a_full_disk(make, small_disk):
    events.recent.clear()
    ds = make().map(wide).cache(str(small_disk / "cache"))
    assert [elements(ds), elements(ds)] == [elements(make().map(wide))] * 2
    assert [e.values["reason"] for e in events.recent if e.kind == "cache.full"] == ["No space left on device"]


def test_a_write_says_so_and_goes_on_once_there_is_room(small_disk, tmp_path):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(400_000))
    noise = np.random.default_rng(0).integers(0, 256, (100, 8000)).astype(np.float32)
    ds = from_tensor_slices({"x": noise[:, :2000]})
    with pytest.raises(DataError, match="No space left on device"):
        ds.write(small_disk / "out", "tfrecord", shard_size="100KB")
    filler.unlink()
    report = ds.write(small_disk / "out", "tfrecord", shard_size="100KB")
    assert report.checksum == ds.write(tmp_path / "whole", "tfrecord", shard_size="100KB").checksum

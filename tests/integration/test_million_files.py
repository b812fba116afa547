"""A million files are listed once, in little memory, and opened at once the second time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

COUNT = 1_000_000
LINKS = 60_000
"""Names of one file: a million names need no million inodes. ext4 allows 65,000."""

# In a process of its own, so that memory is that of the listing alone.
LIST = """
import os, sys, time
from penstock.sources.listing.sample_files import FileRules, list_files

rules = FileRules((".jpg",))
list_files(sys.argv[2], rules)  # imports and warms up

def nbytes(file, name):
    return next(int(line.split()[1]) * 1024 for line in open(f"/proc/self/{file}") if line.startswith(name))

def anonymous():  # names that were looked at are pages of the mapped file: the kernel may drop them at any time
    return nbytes("smaps_rollup", "Anonymous:")

# VmHWM, not ru_maxrss: the latter is inherited from the larger process that started this one.
before, peak_before = anonymous(), nbytes("status", "VmHWM:")
began = time.perf_counter()
index = list_files(sys.argv[1], rules)
took = time.perf_counter() - began
assert index.path(0).endswith("/image_0000000.jpg"), index.path(0)
assert index.path(len(index) - 1).endswith("/image_0999999.jpg"), index.path(len(index) - 1)
assert all(index.path(i) < index.path(i + 1) for i in range(0, len(index) - 1, 997))
held, peak = anonymous() - before, nbytes("status", "VmHWM:") - peak_before
print(len(index), held, peak, took, os.stat(index._file).st_ino)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder that is gone afterwards: a million files would otherwise stay for the next three runs."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_folder_of_a_million_files(folder):
    many, few, cache = folder / "many", folder / "few", folder / "cache"
    for place, count in ((many, COUNT), (few, 10)):
        place.mkdir()
        for i in range(count):  # in an order that is not the sorted one
            name = f"{place}/image_{i * 7919 % count:07d}.jpg"
            if i % LINKS == 0:
                first = name
                os.close(os.open(first, os.O_CREAT | os.O_WRONLY, 0o600))
            else:
                os.link(first, name)
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", LIST, str(many), str(few)],
            env={**os.environ, "PENSTOCK_CACHE": str(cache)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        runs.append([float(word) for word in done.stdout.split()])
    cold, warm = runs
    assert cold[0] == warm[0] == COUNT
    assert cold[1] < 16 * COUNT and warm[1] < 2_000_000, "bytes held after listing"
    assert cold[2] < 150_000_000, "peak while a million names are sorted"
    assert warm[4] == cold[4], "the index was written again though nothing had changed"
    print(f"first start {cold[3]:.2f} s, second {warm[3] * 1000:.1f} ms")
    print(f"held {cold[1] / 1e6:.1f} MB, peak {cold[2] / 1e6:.0f} MB")

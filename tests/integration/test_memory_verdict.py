"""A leak under a real cgroup ends with words, not with the kernel's kill; a forked iterator serves nothing."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import Stopped
from penstock.memory.cgroups import find_cgroups
from penstock.memory.jail import run_limited

LEAK = """
import time
import numpy as np
import penstock as ps
from penstock.core.errors import OutOfMemory
kept = []

def leaky(x):
    kept.append(np.full(2_500, x, np.float64))  # 20 KB a row
    time.sleep(0.0002)
    return x

rows = 0
try:
    for batch in ps.from_tensor_slices(np.arange(2_000_000)).map(leaky).batch(64):
        rows += len(batch)
except OutOfMemory as error:
    print("VERDICT", rows, error, flush=True)
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
def test_a_leaking_map_is_stopped_with_a_verdict():
    done = run_limited(
        [sys.executable, "-c", LEAK],
        "700MB",
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture=True,
        how="cgroup",
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    line = next(line for line in done.stdout.splitlines() if line.startswith("VERDICT"))
    assert "nothing is left to give way" in line and "outside of all data buffers" in line and "map()" in line


def test_a_forked_iterator_stops_at_once():
    """Also while the piece that it had at hand before the fork still holds rows."""
    rows = iter(ps.from_tensor_slices(np.arange(10_000)))
    before = [int(next(rows)) for _ in range(5)]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        found = []
        try:
            while True:
                found.append(int(next(rows)))
        except Stopped as error:
            os.write(writing, json.dumps([found, str(error)]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        served, words = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert served == [] and "made before a fork" in words
    assert before == list(range(5)) and int(next(rows)) == 5

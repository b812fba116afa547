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

HEAD = """
import sys, time
import numpy as np
import penstock as ps
from penstock.core.errors import OutOfMemory
kept = []
numbers = ps.from_tensor_slices(np.arange(2_000_000))

def run(ds, loop=lambda batch: None):
    rows = 0
    try:
        for batch in ds:
            loop(batch)
            rows += len(batch)
    except OutOfMemory as error:
        print("VERDICT", rows, error, flush=True)
"""
LEAKS = {
    "threads": """
def leaky(x):
    kept.append(np.full(25_000, x, np.float64))  # 1 to 2 GB a second, all of it under the interpreter lock
    return x
run(numbers.map(leaky).batch(64))
""",
    "threads, slowly": """
def leaky(x):
    kept.append(np.full(2_500, x, np.float64))
    time.sleep(0.0004)
    return x
run(numbers.map(leaky).batch(64))
""",
    "objects": """
def leaky(x):
    kept.append({"a": [i for i in range(200)], "x": str(x) * 20})
    return x
run(numbers.map(leaky).batch(64))
""",
    "processes": """
def leaky(x):
    kept.append([float(i) for i in range(2000)])
    return x
run(numbers.map(leaky, workers="process").batch(64))
""",
    "the loop": """
def loop(batch):
    kept.append(np.ones(25_000))
    time.sleep(0.0002)
run(numbers.batch(4), loop)
""",
    "kept batches": """
run(ps.from_tensor_slices(np.arange(200_000)).map(lambda x: np.full(5000, x, np.float64)).batch(32), kept.append)
""",
}
SILENT = """
batches = iter(numbers.batch(4))
next(batches)
while True:
    kept.append(np.ones(25_000))
    time.sleep(0.0005)
"""
QUICK = ("threads", "processes", "the loop")
needs_cgroup = pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")


def limited(script):
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    return run_limited([sys.executable, "-c", HEAD + script], "700MB", env=env, capture=True, how="cgroup")


@pytest.mark.timeout(600)
@needs_cgroup
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LEAKS])
def test_a_leak_is_stopped_with_a_verdict(name):
    done = limited(LEAKS[name])
    assert done.returncode == 0 and not done.killed, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    line = next(line for line in done.stdout.splitlines() if line.startswith("VERDICT"))
    assert "nothing is left to give way" in line
    assert ("most of it data" if name == "kept batches" else "outside of all data buffers") in line


@pytest.mark.timeout(600)
@needs_cgroup
def test_a_loop_that_never_asks_for_the_next_batch_dies_with_words():
    """The error could be raised only where the next batch is asked for, which never comes."""
    done = limited(SILENT)
    assert done.killed
    assert "penstock: Memory is at" in done.stderr and "nothing is left to give way" in done.stderr


FAST = """
def leaky(x):
    kept.append(np.full(2_500_000, x, np.float64))  # 2 GB a second and more, without the interpreter lock
    return x
run(numbers.map(leaky).batch(4))
"""


@pytest.mark.timeout(600)
@needs_cgroup
@pytest.mark.parametrize("attempt", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))])
def test_a_leak_that_may_outrun_the_verdict_never_ends_without_words(attempt):
    """The whole limit is filled in a third of a second: a warning is written before it is sure."""
    done = limited(FAST)
    stopped = done.returncode == 0 and "VERDICT" in done.stdout
    told = "penstock: Memory is at" in done.stderr and "outside of all data buffers" in done.stderr
    assert stopped or told, (done.returncode, done.stdout[-500:], done.stderr[-2000:])


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

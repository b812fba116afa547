"""The meter against memory that is really there: counted once, and only what cannot be dropped."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from penstock.memory.meter import Meter, family

MB = 1_000_000
HOLD = (
    "import sys, numpy; held = numpy.ones(int(sys.argv[1]), numpy.uint8); print('ready', flush=True); sys.stdin.read()"
)
ATTACH = """
import mmap, sys
with open('/dev/shm/' + sys.argv[1], 'r+b') as file:
    view = mmap.mmap(file.fileno(), 0)
total = sum(view[i] for i in range(0, len(view), 4096))
print('ready', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def child(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code that prints one line when it is ready and ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()
    assert process.returncode == 0


def touched(nbytes: int) -> np.ndarray:
    return np.ones(nbytes, np.uint8)


def test_touched_memory_is_counted_and_untouched_is_not() -> None:
    meter = Meter()
    before = meter.read().nbytes
    held = touched(200 * MB)
    assert meter.read().nbytes - before == pytest.approx(200 * MB, rel=0.05)
    untouched = np.empty(500 * MB, np.uint8)
    assert meter.read().nbytes - before == pytest.approx(200 * MB, rel=0.05)
    del held, untouched
    assert meter.read().nbytes - before < 10 * MB
    assert meter.peak >= before + 190 * MB


def test_mapped_files_and_page_cache_are_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as out:
        for _ in range(200):
            out.write(b"x" * MB)
    meter = Meter()
    before = meter.read().nbytes
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert int(np.frombuffer(view, np.uint8)[::4096].sum()) > 0
        assert meter.read().nbytes - before < 10 * MB


def test_a_child_is_counted_and_named() -> None:
    meter = Meter()
    before, others = meter.read().nbytes, {use.pid for use in meter.read().by_process}
    with child(HOLD, str(100 * MB)) as process:
        reading = meter.read()
        assert {use.pid for use in reading.by_process} == {*others, process.pid}
        assert os.getpid() in others
        other = next(use for use in reading.by_process if use.pid == process.pid)
        assert other.nbytes == pytest.approx(100 * MB, rel=0.3)  # the interpreter and NumPy come on top
        assert reading.nbytes - before == pytest.approx(other.nbytes, abs=10 * MB)
        assert Meter(process.pid).read().nbytes == pytest.approx(other.nbytes, rel=0.05)
    assert {use.pid for use in meter.read().by_process} == others


def test_grandchildren_are_counted() -> None:
    nested = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {HOLD!r}, sys.argv[1]]))"
    with child(nested, str(100 * MB)) as process:
        assert len(family(process.pid)) == 2
        assert Meter(process.pid).read().nbytes > 100 * MB


def test_shared_memory_is_counted_once() -> None:
    with child(HOLD, "1"):  # as a baseline: one more process of the same kind
        before = Meter().read(exact=True).nbytes
    shared = SharedMemory(create=True, size=100 * MB)
    try:
        np.frombuffer(shared.buf, np.uint8)[:] = 1
        with child(ATTACH, shared.name):
            meter = Meter()
            assert meter.read().nbytes - before == pytest.approx(100 * MB, abs=30 * MB)
            assert meter.read().nbytes - before == pytest.approx(100 * MB, abs=30 * MB)  # by the correction
    finally:
        shared.close()
        shared.unlink()


def test_pages_shared_by_fork_are_counted_once_and_fully_when_the_child_is_gone() -> None:
    held = touched(100 * MB)
    meter = Meter()
    alone = meter.read().nbytes
    forked = os.fork()
    if forked == 0:
        signal.pause()
    try:
        assert meter.read().nbytes == pytest.approx(alone, abs=25 * MB)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)
    assert meter.read().nbytes == pytest.approx(alone, abs=10 * MB)
    assert held[0] == 1


def test_a_process_that_is_gone_reads_as_nothing() -> None:
    with child(HOLD, "1") as process:
        meter = Meter(process.pid)
        assert meter.read().nbytes > 0
    assert meter.read().nbytes == 0
    assert meter.read(exact=True).by_process == ()


def test_children_that_come_and_go_do_not_disturb() -> None:
    meter = Meter()
    for _ in range(15):
        processes = [subprocess.Popen(["/bin/true"]) for _ in range(4)]
        reading = meter.read()
        assert reading.by_process[0].pid == os.getpid()
        for process in processes:
            assert process.wait() == 0

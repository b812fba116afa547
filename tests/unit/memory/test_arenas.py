"""Heaps of malloc, counted by malloc itself in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

JOB = """
import ctypes, re, threading
from penstock.memory.arenas import share_arenas
print("shared", share_arenas(), share_arenas())
libc = ctypes.CDLL(None)
gate = threading.Barrier(9)

def work():
    libc.free(ctypes.c_void_p(libc.malloc(5000)))
    gate.wait()

libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
gate.wait()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize(
    ("chosen", "shared", "least", "most"),
    [
        ({}, True, 1, 2),
        ({"MALLOC_ARENA_MAX": "5"}, False, 3, 5),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, False, 3, 4),
    ],
)
def test_threads_share_two_heaps_unless_the_user_chose(
    chosen: dict[str, str], shared: bool, least: int, most: int
) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env={**plain, **chosen}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["shared", str(shared), str(shared)]
    assert least <= done.stderr.count("Arena ") <= most


FREED = """
import ctypes
from penstock.memory.arenas import map_large_blocks
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def freed_below_another(nbytes):
    block, above = libc.malloc(nbytes), libc.malloc(1000)
    ctypes.memset(block, 1, nbytes)
    libc.free(ctypes.c_void_p(block))
    return above

def data_nbytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))

libc.free(ctypes.c_void_p(libc.malloc(30 << 20)))  # from now on blocks of 30 MB lie in the heap
said = map_large_blocks()
before = data_nbytes()
freed_below_another(20 << 20)
print(said, data_nbytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize(("chosen", "said"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "33554432"}, False)])
def test_large_blocks_go_back_unless_the_user_chose(chosen: dict[str, str], said: bool) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", FREED], env={**plain, **chosen}, capture_output=True, text=True, check=True
    )
    answer, left = done.stdout.split()
    assert answer == str(said)
    assert not said or int(left) < 2**20

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

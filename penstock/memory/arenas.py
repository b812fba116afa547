"""Heaps of malloc: few for all threads, so that what one thread lets go serves the others.

Covers: limiting glibc's arenas, once a process.
Does not cover: giving free memory back (watchdog.py), the environment of worker processes
(engine/workers/processes.py).

glibc makes a heap for each thread, and none of them shrinks while its last block is in use. Reading 8 GB of Parquet
with two threads took 22 MB more at its peak than reading 1 GB; with two heaps for all 10 MB, at the same speed
(measured).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

ARENAS = 2
_M_ARENA_MAX = -8


@functools.cache
def share_arenas() -> bool:
    """Let threads that start from now on share two heaps; False where malloc is another or the user has chosen."""
    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS))

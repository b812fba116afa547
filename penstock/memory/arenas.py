"""Heaps of malloc: few for all threads, and none for large blocks once memory has run out.

Covers: limiting glibc's arenas, once a process; fixing the size from which blocks go back when they are freed.
Does not cover: giving free memory back (watchdog.py), the environment of worker processes
(engine/workers/processes.py).

glibc makes a heap for each thread, and none of them shrinks while its last block is in use. Reading 8 GB of Parquet
with two threads took 22 MB more at its peak than reading 1 GB; with two heaps for all 10 MB, at the same speed
(measured).

glibc also raises the size from which a block is mapped by itself to that of what was freed, up to 32 MB: later blocks
of that size lie in the heap, and one small block above them keeps all of it. A step of 300 MB that was tried in parts
of several sizes then held 40 MB that nobody used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

ARENAS = 2
MAPPED_NBYTES = 128 * 2**10
"""Blocks of this size and more are given back as soon as they are freed. It is what glibc begins with."""
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1


@functools.cache
def share_arenas() -> bool:
    """Let threads that start from now on share two heaps; False where malloc is another or the user has chosen."""
    return not _chosen("arena_max") and _set(_M_ARENA_MAX, ARENAS)


@functools.cache
def map_large_blocks() -> bool:
    """From now on freed blocks of `MAPPED_NBYTES` go back to the system; False where that cannot be said or is chosen.

    Each such block is then made of new pages, which takes time: this is for when memory has run out.
    """
    if _chosen("mmap_threshold") or _chosen("trim_threshold"):
        return False
    return _set(_M_MMAP_THRESHOLD, MAPPED_NBYTES) and _set(_M_TRIM_THRESHOLD, MAPPED_NBYTES)


def _chosen(name: str) -> bool:
    """Whether the user has set this, by either of glibc's names."""
    own = f"MALLOC_{name.upper()}"
    return own in os.environ or f"{own}_" in os.environ or name in os.environ.get("GLIBC_TUNABLES", "")


def _set(what: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(what, value))

"""Check free memory, and reclaim some.

Covers: free bytes against every limit in force, whether memory is short, returning freed memory to the system.
Does not cover: finding the limits (memory/limits.py), the process tree (memory/meter.py).
"""

from __future__ import annotations

import ctypes
import gc
import sys

from penstock.core.errors import TooLarge
from penstock.engine.pipe import pipe
from penstock.memory.budget import Budget, Lease
from penstock.memory.limits import current_limit
from penstock.memory.meter import Meter

SHORT = 0.25
"""Below this share of the limit, an error that does not say what it is may be a lack of memory."""


def free_nbytes() -> int:
    """Bytes left before the tightest limit: real use against the budget, address space against ulimits."""
    left = current_limit().nbytes - Meter().read().nbytes
    return max(0, min([left, *_left_below_ulimits()]))


def memory_is_short() -> bool:
    """Whether so little is left that a vague error is likely to mean it."""
    limit = current_limit().nbytes
    return free_nbytes() < SHORT * limit


def release(*, thorough: bool = True) -> None:
    """Collect cycles and hand freed heap pages back to the system.

    What a failed step leaves is young; looking through everything a framework holds took up to 2 s.
    """
    gc.collect(2 if thorough else 1)
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # musl has no malloc_trim, and nothing to trim
            return


def try_room(nbytes: int, *, who: str) -> Lease | None:
    """A lease for bytes that can do without: only if they leave as much again free. None if they do not."""
    free = free_nbytes()
    if 2 * nbytes > free:
        return None
    budget = pipe().budget or Budget(free, name="guard")
    try:
        return budget.try_lease(nbytes, who=who)
    except TooLarge:
        return None


def _left_below_ulimits() -> list[int]:
    """What the soft limits on data and address space still allow."""
    if sys.platform != "linux":
        return []
    import resource  # not on Windows

    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = [line.split() for line in file if line.startswith(("VmData", "VmSize"))]
    used = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    left = []
    for kind, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used[name])
    return left

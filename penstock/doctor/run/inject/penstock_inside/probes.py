"""Experiments that separate look-alikes, run inside of the script when memory is nearly used up.

Covers: how much gc.collect gives back (reference cycles), how much malloc_trim gives back (the allocator keeps it).
Does not cover: when to ask for them (penstock/doctor/run), what they mean (causes/).
"""

import ctypes
import gc
import mmap
import time


def _resident() -> int:
    with open("/proc/self/statm") as file:
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE


def probe() -> "dict[str, object]":
    """Measure before, between and after."""
    start_s = time.monotonic()
    before = _resident()
    found = gc.collect()
    collected = _resident()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    trimmed = _resident()
    return {
        "before": before,
        "cycles": found,
        "gc_gave": max(0, before - collected),
        "trim_gave": max(0, collected - trimmed),
        "trim": trim is not None,
        "took_s": time.monotonic() - start_s,
    }

"""Settings of libraries that penstock makes when it is imported, where the user has made none.

Covers: the settings, why, and an environment without them for programs that are not penstock's.
Does not cover: malloc's settings for workers (guard/malloc_env.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.memory.limits import find_limit

_made: dict[str, str] = {}


def make_settings() -> None:
    """Set what libraries read once, when they are loaded."""
    # Arrow's allocator gives freed buffers back after 10 ms, and the next block faults them in again: a fifth of the
    # time of reading Parquet (measured). Where memory is short, they go back at once.
    _set("MIMALLOC_PURGE_DELAY", "1000" if find_limit().nbytes > 2_000_000_000 else "0")
    # Torch divides each operation among its threads, and those that are done wait by spinning, for milliseconds. Beside
    # threads that read, one part is nearly always late: a small network took three times the processor time. Waiting
    # asleep computes the same (docs/feeds.md).
    _set("OMP_WAIT_POLICY", "PASSIVE")


def _set(name: str, value: str) -> None:
    if name not in os.environ:
        os.environ[name] = _made[name] = value


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as the user has set it: a script that is only watched runs as it would alone."""
    return {name: value for name, value in env.items() if _made.get(name) != value}

"""An allocator that gives freed memory back, for processes whose memory is forecast and limited.

Covers: the environment in which forecasts hold, for a process that is about to be started.
Does not cover: this process: glibc reads these names once, before main().
"""

from __future__ import annotations

from collections.abc import Mapping

STEADY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Blocks of 128 KiB and more go back to the system when freed, so that memory follows the tensors. With glibc's moving
thresholds the same steps' peaks were 10 to 96 % off a straight line."""
_TUNABLES = {"MALLOC_MMAP_THRESHOLD_": "glibc.malloc.mmap_threshold", "MALLOC_TRIM_THRESHOLD_": "glibc.malloc.trim_"}


def steady_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with steady thresholds; what the user has set, by either of glibc's names, stays.

    >>> steady_environment({"MALLOC_TRIM_THRESHOLD_": "1"})["MALLOC_TRIM_THRESHOLD_"]
    '1'
    """
    own = env.get("GLIBC_TUNABLES", "")
    return {**{name: value for name, value in STEADY.items() if _TUNABLES[name] not in own}, **env}

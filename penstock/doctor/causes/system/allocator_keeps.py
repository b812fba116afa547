"""The allocator keeps memory that the script has freed.

Covers: what malloc_trim gave back when it was tried.
Does not cover: reference cycles (keeping/reference_cycles.py).
"""

from __future__ import annotations

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    gave = max((int(p["trim_gave"]) for p in facts.evidence.probes), default=0)
    if gave < 0.2 * facts.limit:
        return None
    # A little stays behind in every job with threads: only where it is much, it is the reason.
    return Sign(
        0.9 if gave > 0.35 * facts.limit else 0.45,
        (f"malloc_trim gave back {size(gave)} that the script had freed already",),
        nbytes=gave,
    )


CAUSE = Cause(
    name="allocator-keeps",
    title="glibc keeps memory that the script has freed",
    why="Freed blocks stay in malloc's heaps, one heap per thread, when a small block above them is still in use.",
    cure=(
        "MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072 in the "
        "environment, malloc_trim(0) at the end of an epoch, or jemalloc."
    ),
    live=live,
    env={"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"},
    instead="MALLOC_MMAP_THRESHOLD_=131072 MALLOC_ARENA_MAX=2 python train.py",
)

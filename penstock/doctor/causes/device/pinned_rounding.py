"""Pinned host memory is rounded up to powers of two.

Covers: pin_memory with a failed pinned allocation, or shared memory far above what was asked for.
Does not cover: prefetching too many batches (workers/prefetch_product.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    said = facts.says(
        r"cudaHostAlloc|cudaErrorMemoryAllocation|CachingHostAllocator|pinned memory|pin_memory.*out of memory"
    )
    return Sign(0.75, (said,)) if said else None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(".pin_memory"):
        if script.in_loop(call) is None:
            yield Found(
                script.place(call), "pin_memory() of a large tensor is rounded up to a power of two", sure=False
            )


CAUSE = Cause(
    name="pinned-rounding",
    title="Pinned memory is rounded up to a power of two",
    why="torch's pinned allocator serves powers of two and keeps them: 1.1 GB takes 2 GB for good.",
    cure=(
        "PYTORCH_CUDA_ALLOC_CONF=pinned_use_cuda_host_register:True, smaller prefetch, pin batches "
        "rather than datasets."
    ),
    live=live,
    script=script,
)

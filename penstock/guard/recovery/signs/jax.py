"""JAX's out-of-memory errors.

Covers: XLA's allocator at run time, at dispatch and at compile time.
Does not cover: the poisoned buffers that a donating step leaves behind; the guard never donates state.
"""

from __future__ import annotations

from penstock.guard.recovery.signs.signs import Signs

# JaxRuntimeError carries every XLA status, so its type alone says nothing.
JAX = Signs(
    framework="jax",
    texts=(
        "resource_exhausted",
        "out of memory allocating",
        "error dispatching computation: out of memory",
        "out of memory while trying to allocate",
        "failed to allocate request for",
        "out of memory",
        "memoryerror",  # raised in a callback from compiled code; only its text survives
    ),
    disguised=("ynnpack operation failed",),
)

"""TensorFlow's out-of-memory errors.

Covers: the eager and graph executors, and XLA inside TensorFlow.
Does not cover: aborts of the process, which only a parent sees (guard/supervise.py).
"""

from __future__ import annotations

from penstock.guard.recovery.signs.signs import Signs

TENSORFLOW = Signs(
    framework="tensorflow",
    types=frozenset({"tensorflow.python.framework.errors_impl.ResourceExhaustedError"}),
    texts=(
        "oom when allocating tensor",
        "resource_exhausted",
        "resource exhausted",
        "out of memory while trying to allocate",
        "failed to allocate memory",
        "dst tensor is not initialized",
    ),
)

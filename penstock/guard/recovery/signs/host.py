"""Out-of-memory errors of Python, NumPy and the operating system.

Covers: MemoryError and its NumPy subclass, ENOMEM from system calls, Arrow's allocator.
Does not cover: the kernel's killer, which leaves no exception (guard/supervise.py).
"""

from __future__ import annotations

from penstock.guard.recovery.signs.signs import Signs

HOST = Signs(
    framework="host",
    types=frozenset({"builtins.MemoryError", "pyarrow.lib.ArrowMemoryError"}),
    texts=("cannot allocate memory", "std::bad_alloc", "unable to allocate"),
)

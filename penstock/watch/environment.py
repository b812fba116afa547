"""What a run ran on: machine, limit, versions.

Covers: facts that explain why the same job went differently elsewhere.
Does not cover: accelerators in detail (guard/devices.py), anything secret: no variables of the environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from penstock.memory.limits import current_limit

PACKAGES = ("penstock", "numpy", "pyarrow", "keras", "tensorflow", "tensorflow-cpu", "torch", "jax")


def describe_environment() -> dict[str, Any]:
    """The machine and the versions of what is installed; nothing is imported to find out."""
    limit = current_limit()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "limit_nbytes": limit.nbytes,
        "limit_reason": limit.reason,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

"""The causes: one file each.

Covers: finding them all, by folder.
Does not cover: ranking them for a run (verdict/rank.py).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from penstock.doctor.causes.cause import Cause

ROOMS = ("data", "keeping", "workers", "step", "system", "device")


@cache
def all_causes() -> tuple[Cause, ...]:
    """Every cause, in the order of rooms and names."""
    found = []
    for room in ROOMS:
        package = importlib.import_module(f"{__name__}.{room}")
        for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
            cause = getattr(importlib.import_module(f"{package.__name__}.{module}"), "CAUSE", None)
            if isinstance(cause, Cause):
                found.append(cause)
    return tuple(found)

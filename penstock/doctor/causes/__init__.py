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
    return tuple(cause for room in ROOMS for cause in causes_of(room))


@cache
def causes_of(room: str) -> tuple[Cause, ...]:
    """The causes of one room, by name."""
    package = importlib.import_module(f"{__name__}.{room}")
    modules = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    found = (getattr(importlib.import_module(f"{package.__name__}.{name}"), "CAUSE", None) for name in modules)
    return tuple(cause for cause in found if isinstance(cause, Cause))

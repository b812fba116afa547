"""The byte budget of what shrinking buffers.

Covers: planning it from what the memory limit leaves, and leases on it.
Does not cover: the pipe that feeds batches (engine/), which has a budget of its own, memory inside the frameworks.
"""

from __future__ import annotations

import threading

from penstock.core.errors import TooLarge
from penstock.memory.budget import Budget, Lease
from penstock.memory.limits import current_limit, current_reserve
from penstock.memory.meter import Meter
from penstock.memory.watchdog import plan_budget

_lock = threading.Lock()
_budgets: list[Budget] = []


def budget() -> Budget:
    """The budget, planned anew: the limit, less what the process holds beside leases that are out."""
    with _lock:
        leased = _budgets[0].used if _budgets else 0
        used = max(0, Meter().read().nbytes - leased)
        total = plan_budget(current_limit().nbytes, used, current_reserve())
        if not _budgets:
            _budgets.append(Budget(total, name="shrink"))
        _budgets[0].resize(total)
        return _budgets[0]


def held(nbytes: int, who: str) -> Lease:
    """Lease bytes before they are filled; raises TooLarge, with the numbers, where the limit has no room for them.

    Shrinking is one thread: it would wait for itself for ever, so it never waits.
    """
    plan = budget()
    lease = plan.try_lease(nbytes, who=who)
    if lease is None:
        raise TooLarge(who=who, nbytes=nbytes, limit=plan.free)
    return lease

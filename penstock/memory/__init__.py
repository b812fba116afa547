"""How much memory there is, how much is in use, and who may have how much of it.

Covers: limits, measuring, byte budgets, the watchdog that keeps them true, and reports about all of it.
Does not cover: accelerators' memory (guard/).
"""

from penstock.memory.account import MemoryReport, add_holder, memory_report
from penstock.memory.budget import Budget, Lease, live_budgets
from penstock.memory.cgroups import Counters, read_counters
from penstock.memory.jail import Outcome, run_limited
from penstock.memory.limits import Limit, current_limit, current_reserve, find_limit, limit, list_limits
from penstock.memory.meter import Meter, ProcessUse, Reading
from penstock.memory.watchdog import Rung, Watchdog, plan_budget, trim_allocator

__all__ = [
    "Budget",
    "Counters",
    "Lease",
    "Limit",
    "MemoryReport",
    "Meter",
    "Outcome",
    "ProcessUse",
    "Reading",
    "Rung",
    "Watchdog",
    "add_holder",
    "current_limit",
    "current_reserve",
    "find_limit",
    "limit",
    "list_limits",
    "live_budgets",
    "memory_report",
    "plan_budget",
    "read_counters",
    "run_limited",
    "trim_allocator",
]

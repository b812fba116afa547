"""What holds the memory, as one report.

Covers: limit, measured use by process, every live budget and its holders, and holders that other rooms name.
Does not cover: changing any of it (watchdog.py), history (watch/).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.sizes import size
from penstock.memory.budget import live_budgets
from penstock.memory.limits import Limit, current_limit
from penstock.memory.meter import Meter, Reading
from penstock.memory.unleased import unleased

RACE = 1.05
"""A process that was measured larger than its table by more than this is measured again."""

_named: dict[str, Callable[[], int]] = {}
_meter = Meter()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """One budget at one moment."""

    name: str
    total: int
    used: int
    peak: int
    holders: dict[str, int]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory of this process and its children at one moment. `peak` is the most that any report measured."""

    limit: Limit
    measured: Reading
    peak: int
    budgets: tuple[BudgetUse, ...]
    named: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)
    """What this process holds without a lease or a name, by how it came to be (unleased.py)."""

    @property
    def unexplained(self) -> int:
        """What is measured and neither leased, named, of a known kind, nor another process's."""
        others = sum(process.nbytes for process in self.measured.by_process[1:])
        return max(0, self.other - sum(self.kinds.values()) - others)

    @property
    def other(self) -> int:
        """Measured memory without a name: the interpreter, libraries, and whatever no room accounts for."""
        named = sum(budget.used for budget in self.budgets) + sum(self.named.values())
        return max(0, self.measured.nbytes - named)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON."""
        return {
            "limit": {"nbytes": self.limit.nbytes, "reason": self.limit.reason},
            "measured": self.measured.nbytes,
            "peak": self.peak,
            "processes": [{"pid": p.pid, "name": p.name, "nbytes": p.nbytes} for p in self.measured.by_process],
            "budgets": [
                {"name": b.name, "total": b.total, "used": b.used, "peak": b.peak, "holders": dict(b.holders)}
                for b in self.budgets
            ],
            "named": dict(self.named),
            "other": self.other,
            "kinds": dict(self.kinds),
            "unexplained": self.unexplained,
        }

    def __str__(self) -> str:
        share = self.measured.nbytes / self.limit.nbytes
        rows = [
            ("limit", self.limit.nbytes, self.limit.reason),
            ("in use", self.measured.nbytes, f"{share:.0%} of the limit; peak {size(self.peak)}"),
        ]
        rows += [(f"  {p.name}", p.nbytes, f"process {p.pid}") for p in self.measured.by_process]
        for budget in self.budgets:
            note = f"of {size(budget.total)}; peak {size(budget.peak)}"
            rows.append((f"{budget.name} budget", budget.used, note))
            rows += [(f"  {who}", nbytes, "") for who, nbytes in _largest_first(budget.holders)]
        rows += [(name, nbytes, "") for name, nbytes in _largest_first(self.named)]
        rows += [(name, nbytes, "") for name, nbytes in _largest_first(self.kinds) if nbytes]
        rows.append(("not accounted for", self.unexplained, ""))
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {size(nbytes):>8}  {note}".rstrip() for name, nbytes, note in rows)


def memory_report() -> MemoryReport:
    """Report what holds how much memory now.

    >>> report = memory_report()
    >>> report.measured.nbytes > 0
    True
    """
    return sample(exact=True)


def sample(*, exact: bool = False) -> MemoryReport:
    """The same report for those who ask often: memory that processes share is looked up again only now and then."""
    with _lock:
        measured = _meter.read(exact=exact)
        peak = _meter.peak
        named = dict(_named)
    budgets = tuple(BudgetUse(b.name, b.total, b.used, b.peak, b.holders()) for b in live_budgets())
    held = {name: ask() for name, ask in named.items()}
    known = sum(budget.used for budget in budgets) + sum(held.values())
    kinds = unleased(known)
    if kinds and measured.by_process[0].nbytes > RACE * (sum(kinds.values()) + known):
        # What a framework's thread let go of while the kernel wrote the table would stand there without a name.
        with _lock:
            measured = min(measured, _meter.read(exact=exact), key=lambda reading: reading.nbytes)
    return MemoryReport(current_limit(), measured, peak, budgets, held, kinds)


def add_holder(name: str, nbytes: Callable[[], int]) -> Callable[[], None]:
    """Name memory outside any budget, such as "model parameters"; the returned function takes the name away."""
    with _lock:
        if name in _named:
            raise InvalidInput(f"{name!r} already accounts for memory; choose another name or remove the first one.")
        _named[name] = nbytes

    def remove() -> None:
        with _lock:
            if _named.get(name) is nbytes:
                del _named[name]

    return remove


def _largest_first(holders: dict[str, int]) -> list[tuple[str, int]]:
    """Order holders by what they hold."""
    return sorted(holders.items(), key=lambda item: -item[1])

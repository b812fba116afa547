"""The report names every holder, and its numbers are those of the parts."""

from __future__ import annotations

import json

import pytest

from penstock.core.errors import InvalidInput
from penstock.memory.account import BudgetUse, MemoryReport, add_holder, memory_report
from penstock.memory.budget import Budget
from penstock.memory.limits import Limit, limit
from penstock.memory.meter import ProcessUse, Reading

REPORT = MemoryReport(
    limit=Limit(2_000_000_000, "cgroup v2 memory.max of /"),
    measured=Reading(900_000_000, (ProcessUse(7, "python", 800_000_000), ProcessUse(9, "worker", 100_000_000))),
    peak=950_000_000,
    budgets=(
        BudgetUse("data", 500_000_000, 300_000_000, 400_000_000, {"batches": 100_000_000, "window": 200_000_000}),
    ),
    named={"model parameters": 450_000_000},
)


def test_the_table_is_plain_text() -> None:
    assert str(REPORT).splitlines() == [
        "limit                  2 GB  cgroup v2 memory.max of /",
        "in use               900 MB  45% of the limit; peak 950 MB",
        "  python             800 MB  process 7",
        "  worker             100 MB  process 9",
        "data budget          300 MB  of 500 MB; peak 400 MB",
        "  window             200 MB",
        "  batches            100 MB",
        "model parameters     450 MB",
        "not accounted for     50 MB",
    ]


def test_the_data_survive_json() -> None:
    data = json.loads(json.dumps(REPORT.as_dict()))
    assert data["limit"] == {"nbytes": 2_000_000_000, "reason": "cgroup v2 memory.max of /"}
    assert data["measured"] == sum(process["nbytes"] for process in data["processes"])
    assert data["budgets"][0]["holders"] == {"batches": 100_000_000, "window": 200_000_000}
    assert (data["named"], data["other"]) == ({"model parameters": 450_000_000}, 150_000_000)


def test_a_live_report_shows_budgets_limits_and_named_holders() -> None:
    budget = Budget(5_000_000, name="account test")
    remove = add_holder("weights", lambda: 123)
    try:
        with budget.lease(2_000_000, who="window"), limit("3GB"):
            report = memory_report()
        with pytest.raises(InvalidInput, match="already accounts"):
            add_holder("weights", lambda: 5)
    finally:
        remove()
    use = next(use for use in report.budgets if use.name == "account test")
    assert use == BudgetUse("account test", 5_000_000, 2_000_000, 2_000_000, {"window": 2_000_000})
    assert report.named["weights"] == 123
    assert report.limit == Limit(3_000_000_000, "set by the user")
    assert report.peak >= report.measured.nbytes > 5_000_000
    assert "weights" not in memory_report().named
    remove()  # harmless

"""The ranks of a run beside each other: from events to the table on the page and in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.guard.ranks.agree import OneRank
from penstock.guard.ranks.timed import TimedRanks
from penstock.watch.event_log import EventLog
from penstock.watch.live.run_list import RunList
from penstock.watch.ranks import RankTable, with_straggler
from penstock.watch.report import report_data, write_report
from penstock.watch.run_folder import rank_folder
from penstock.watch.summary import summarise

WAITS = {0: 2.5, 1: 0.1, 2: 3.0}
"""Seconds of ten that each rank has waited for the others: they wait for rank 1."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three ranks; rank 1 was killed once, after step 20, and all went on at step 15."""
    folder = tmp_path / "run"
    for rank, waited_s in WAITS.items():
        with EventLog(rank_folder(folder, rank)) as log:
            write(log, 0, waited_s=0.0, first=10)
            if rank == 0:
                log.write("run.death", "parent", {"signal": "SIGKILL", "why": "killed", "ranks": [1]}, 111)
            write(log, 1, waited_s=waited_s, first=15)
    return folder


def write(log: EventLog, attempt: int, *, waited_s: float, first: int) -> None:
    t = 100.0 + 20 * attempt
    log.write("run.start", "train", {"attempt": attempt + 1, "limit_nbytes": 10**9}, t)
    if attempt:
        log.write("guard.resume", "c", {"found": True, "epoch": 0, "step": 15, "total_steps": 15}, t)
    log.write("memory.sample", "recorder", {"used_nbytes": 4 * 10**8, "limit_nbytes": 10**9}, t)
    for n, done in enumerate((first, first + 10)):
        values: dict[str, Any] = {"total_steps": done, "samples_per_s": 100.0, "waited_share": 0.02}
        log.write("train.progress", "m", {**values, "ranks_waited_s": waited_s * n}, t + 10 * n)


def test_each_rank_has_a_row_and_the_slowest_is_named(run: Path) -> None:
    rows = RankTable(run).read()
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert [row["straggler"] for row in rows] == [False, True, False]
    assert [row["attempts"] for row in rows] == [2, 2, 2]
    assert [row["deaths"] for row in rows] == [0, 1, 0]
    assert [row["peak_nbytes"] for row in rows] == [4 * 10**8] * 3
    assert rows[2]["ranks_share"] == pytest.approx(3.0 / 20)


def test_nobody_is_blamed_where_ranks_wait_little_or_alike() -> None:
    def found(*shares: float | None) -> list[bool]:
        return [row["straggler"] for row in with_straggler([{"ranks_share": share} for share in shares])]

    assert found(0.01, 0.04) == [False, False]
    assert found(0.20, 0.22) == [False, False]
    assert found(0.02, None) == [False, False]
    assert found(0.02, 0.30) == [True, False]


def test_report_page_and_terminal_tell_ranks_restarts_and_what_was_redone(run: Path, tmp_path: Path) -> None:
    chart_data = report_data(run)
    assert chart_data["facts"]["redone_steps"] == 5 and len(chart_data["ranks"]) == 3
    assert any(mark["text"] == "Rank 1 died: killed" for mark in chart_data["story"]["decisions"])
    assert '"ranks":[{"rank":0' in write_report(chart_data, tmp_path / "report.html").read_text()
    console = Console(record=True, width=140)
    console.print(summarise(chart_data))
    text = console.export_text()
    assert "1 slowest" in text and "died 1x" in text and "about 5 steps trained again" in text
    live = RunList(tmp_path).chart_data("run")
    assert live is not None and live[0]["ranks"] == chart_data["ranks"]


def test_a_run_of_one_process_has_no_table(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        write(log, 0, waited_s=0.0, first=1)
    assert RankTable(tmp_path).read() == []


def test_votes_are_timed_and_sums_are_not() -> None:
    now = iter([1.0, 3.0, 10.0, 10.5])
    ranks = TimedRanks(OneRank(), clock=lambda: next(now))
    assert ranks.totals(2.0) == (2.0,) and ranks.any(False) is False
    assert ranks.add([1], 0.5) == [1] and ranks.from_first([2]) == [2]
    assert ranks.waited_s == 2.5 and (ranks.rank, ranks.size) == (0, 1)

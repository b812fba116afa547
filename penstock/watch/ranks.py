"""The ranks of one run beside each other: memory, waits, which one holds the others up, which were restarted.

Covers: taking in every rank's events, a few numbers each, and naming a straggler.
Does not cover: the first rank's whole story (digest.py), drawing (page/run.js, summary.py).

A step ends when the slowest rank has ended it. The others wait for it in their votes, so the rank that waits least for
the others is the one they wait for.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from penstock.watch.run_folder import EVENTS, Record, Tail, rank_folders

WAITS = 0.10
"""From this share of the time on, ranks that wait for one another are worth a word."""
MOST_RANKS = 1024

Row = dict[str, Any]


class RankDigest:
    """One rank's numbers, from its own events."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self._tail = Tail(folder)
        self._attempts, self._status = 0, "empty"
        self._peak = self._used = self._limit = 0
        self._progress: Record = {}
        self._first: tuple[float, float] | None = None
        self._lost_s = self._trained_s = 0.0
        self._deaths: dict[int, int] = {}

    def read(self) -> None:
        """Take in what is new."""
        while True:
            before = self._tail.offset
            for record in self._tail.read():
                self._take(record)
            if self._tail.offset == before:
                return

    def row(self, deaths: int) -> Row:
        """The numbers of this rank, as the page and the report show them."""
        progress = self._progress
        return {
            "rank": self.rank,
            "status": self._status,
            "attempts": self._attempts,
            "deaths": deaths,
            "step": _count(progress.get("total_steps")),
            "samples_per_s": _number(progress.get("samples_per_s")),
            "waited_share": _number(progress.get("waited_share")),
            "ranks_share": self._lost_s / self._trained_s if self._trained_s > 0 else None,
            "used_nbytes": self._used or None,
            "peak_nbytes": self._peak or None,
            "limit_nbytes": self._limit or None,
        }

    @property
    def deaths(self) -> dict[int, int]:
        """Deaths by rank, as reported by the supervisor; it writes into the first rank's events."""
        return self._deaths

    def _take(self, record: Record) -> None:
        kind = record["kind"]
        if kind == "run.start":
            self._attempts, self._status, self._first = self._attempts + 1, "running", None
        elif kind == "run.end":
            self._status = str(record.get("status", "finished"))
        elif kind == "run.death":
            for rank in record.get("ranks") or []:
                self._deaths[int(rank)] = self._deaths.get(int(rank), 0) + 1
        elif kind == "memory.sample":
            self._used, self._limit = _count(record.get("used_nbytes")) or 0, _count(record.get("limit_nbytes")) or 0
            self._peak = max(self._peak, self._used)
        elif kind == "train.progress":
            self._take_progress(record)

    def _take_progress(self, record: Record) -> None:
        self._progress = record
        lost_s, now_s = _number(record.get("ranks_waited_s")), _number(record.get("t"))
        if lost_s is None or now_s is None:
            return
        if self._first is not None:
            self._trained_s += max(0.0, now_s - self._first[0])
            self._lost_s += max(0.0, lost_s - self._first[1])
        self._first = (now_s, lost_s)


class RankTable:
    """All ranks of a run folder; those that come later are found when it is read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: dict[str, RankDigest] = {}

    def read(self) -> list[Row]:
        """A row for each rank; none for a run of one process."""
        found = [path for path in rank_folders(self._folder) if (path / EVENTS).exists()][:MOST_RANKS]
        if len(found) < 2:
            return []
        for path in found:
            number = 0 if path == self._folder else int(path.name)
            self._ranks.setdefault(str(path), RankDigest(number, path)).read()
        told = next(iter(self._ranks.values())).deaths
        return with_straggler([rank.row(told.get(rank.rank, 0)) for rank in self._ranks.values()])


def with_straggler(rows: list[Row]) -> list[Row]:
    """The rows with a mark on the rank that the others wait for, where they wait for one."""
    waits = sorted(row["ranks_share"] for row in rows if row["ranks_share"] is not None)
    held_up = len(waits) == len(rows) > 1 and waits[1] >= WAITS and waits[0] < waits[1] / 2
    return [{**row, "straggler": held_up and row["ranks_share"] == waits[0]} for row in rows]


def _number(told: Any) -> float | None:
    fits = isinstance(told, (int, float)) and not isinstance(told, bool) and math.isfinite(told)
    return float(told) if fits else None


def _count(told: Any) -> int | None:
    found = _number(told)
    return None if found is None or abs(found) >= 2**53 else int(found)

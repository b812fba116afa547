"""The runs that a live page shows: found, taken in piece by piece, forgotten when there are too many.

Covers: the list of runs with their state, and an up-to-date digest of each run on view.
Does not cover: serving (server.py).

Nothing is read unless a page asks. A long run is taken in a few megabytes at a time, so that the first charts come at
once and fills up.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.watch.chart_data import SILENT_S, ChartData, draw, facts_of
from penstock.watch.digest import Digest, number
from penstock.watch.ranks import RankTable
from penstock.watch.run_folder import EVENTS, Record, RunInfo, Tail, list_runs

MOST_OPEN = 16
"""Digests kept; each is at most a megabyte."""
MOST_LISTED = 200
TURN_S = 0.25
"""How long one turn of reading may take before charts are drawn of what is known so far."""
PEEK_NBYTES = 32 * 1024


@dataclass(slots=True)
class _Open:
    """A run on view."""

    tail: Tail
    digest: Digest
    ranks: RankTable
    restarts: int = 0


class RunList:
    """All runs below a folder. Its methods may be called by several threads at once."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._peeks: dict[str, tuple[tuple[float, int], dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[RunInfo]:
        """The runs there are now, the one that changed last first."""
        return list_runs(self.folder)[:MOST_LISTED]

    def listing(self) -> list[dict[str, Any]]:
        """Every run's name and state, from the end of its events alone."""
        rows, now_s = [], time.time()
        with self._lock:
            runs = self.runs()
            for run in runs:
                known = (run.changed_s, run.events_nbytes)
                if self._peeks.get(run.name, (None,))[0] != known:
                    self._peeks[run.name] = (known, _peek_any(run.folder))
                row = {"name": run.name, **self._peeks[run.name][1]}
                if row["status"] == "running" and now_s - run.changed_s > SILENT_S:
                    row["status"] = "silent"
                rows.append(row)
            self._peeks = {run.name: self._peeks[run.name] for run in runs}
        return rows

    def chart_data(self, name: str, since: str = "") -> tuple[ChartData, bool] | None:
        """A run's chart data, and whether more is waiting to be read; None if there is no such run."""
        with self._lock:
            opened = self._find(name)
            if opened is None:
                return None
            more = self._read(opened)
            return {**draw(opened.digest, name=name, since=since), "ranks": opened.ranks.read()}, more

    def facts(self, name: str) -> dict[str, Any] | None:
        """A run's numbers, all of its events taken in."""
        with self._lock:
            opened = self._find(name)
            while opened is not None and self._read(opened):
                continue
            return None if opened is None else facts_of(opened.digest, time.time())

    def _find(self, name: str) -> _Open | None:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        folder = next((run.folder for run in self.runs() if run.name == name), None)
        if folder is None:
            return None
        self._open[name] = _Open(Tail(folder), Digest(), RankTable(folder))
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return self._open[name]

    def _read(self, opened: _Open) -> bool:
        """Take in what is new, for one turn; True if there is more."""
        end_s = time.monotonic() + TURN_S
        while True:
            before = opened.tail.offset
            records = opened.tail.read()
            if opened.tail.restarts != opened.restarts:
                opened.restarts, opened.digest = opened.tail.restarts, Digest()
            for record in records:
                opened.digest.take(record)
            if opened.tail.offset == before:
                return False
            if time.monotonic() > end_s:
                return True


def _peek_any(folder: Path) -> dict[str, Any]:
    """What can be said of a run, whatever its folder holds: one that cannot be read must not hide the others."""
    try:
        return peek(folder)
    except Exception:
        return {"status": "unreadable", "epoch": None, "loss": None}


def peek(folder: Path) -> dict[str, Any]:
    """A run's state from the last lines of its events."""
    status, settled = "empty", False
    found: Record = {}
    for record in reversed(_last_lines(folder / EVENTS)):
        kind = record.get("kind")
        if not settled:
            settled = record.get("who") != "recorder"  # its last sample comes after the run's end
            status = {"run.end": str(record.get("status", "finished")), "run.death": "dead"}.get(str(kind), "running")
        if kind in ("train.progress", "train.epoch"):
            found = record
            break
    logs = found.get("logs")
    loss = number(logs.get("loss")) if isinstance(logs, dict) else None
    finite = loss if loss is not None and abs(loss) < float("inf") else None
    epoch = number(found.get("epoch"))
    return {"status": status, "epoch": int(epoch) if epoch is not None and abs(epoch) < 2**53 else None, "loss": finite}


def _last_lines(path: Path) -> list[Record]:
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - PEEK_NBYTES)
            file.seek(start)
            lines = file.read(PEEK_NBYTES).split(b"\n")[1 if start else 0 : -1]
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records

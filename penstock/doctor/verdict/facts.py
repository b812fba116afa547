"""What detectors ask of the evidence, computed once.

Covers: who grew, where in the script, which names grew, what was called, what was said.
Does not cover: judging it (causes/).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.doctor.evidence.read import Evidence, Frame, Record, Stack
from penstock.doctor.verdict.ending import Ending, how_it_ended, main_pid
from penstock.doctor.verdict.shape import Point, Shape, shape_of

LOADING = ("start", "import", "load")
WAITS = frozenset(("select", "poll", "wait", "_try_wait", "join", "recv", "_recv", "recv_bytes", "accept", "acquire"))
"""Innermost functions of a process that waits for others: it takes no memory meanwhile."""
_OTHERS = ("/site-packages/", "/dist-packages/", "<frozen", "<string>", "/penstock_inside/", "/lib/python3")


@dataclass(frozen=True)
class Grown:
    """Growth while a line of the script ran; `inner` is the innermost function below it."""

    place: str
    nbytes: int
    inner: str


@dataclass(frozen=True)
class HolderGrowth:
    """One name over time: first and last bytes and length that were seen."""

    name: str
    where: str
    type: str
    detail: str
    first: int
    last: int
    first_len: int
    last_len: int
    pid: int = 0

    @property
    def word(self) -> str:
        """The name without what leads to it: `decoded` for `dataset.reader.decoded`."""
        return self.name.rpartition(".")[2]


class Clues:
    """Answers about one run."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.limit = int(evidence.run["limit"])
        self.main = main_pid(evidence)

    @cached_property
    def ending(self) -> Ending:
        return how_it_ended(self.evidence)

    @cached_property
    def points(self) -> list[Point]:
        found, start = [], float(self.evidence.run["start"])
        last = Point(0.0, 0, "start", 0, 0)
        stopped = next((r["t"] for r in self.evidence.story if r.get("kind") == "stopped"), float("inf"))
        for sample in self.evidence.samples:
            if sample["t"] > stopped:  # the tree is ending: what it frees now tells nothing
                break
            board = sample["boards"].get(str(self.trainer)) or sample["boards"].get(str(self.main))
            if board is None:  # before the hooks started, or after the process ended
                point = Point(sample["t"] - start, sample["used"], last.phase, last.epoch, last.step)
            else:
                point = Point(
                    sample["t"] - start,
                    sample["used"],
                    board.get("phase", "start"),
                    board.get("epoch", 0),
                    board.get("step", 0),
                )
            found.append(point)
            last = point
        while found and found[-1].used < 0.5 * found[max(0, len(found) - 3)].used and len(found) > 3:
            found.pop()  # the tree was ending already
        return found

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.points, self.limit)

    @property
    def died(self) -> bool:
        """Whether the run ended for memory."""
        return self.ending.memory

    @cached_property
    def trainer(self) -> int:
        """The process that trains: the main one, or what a launcher started, by the steps that were made."""
        steps = {pid: int(board.get("step", 0)) for pid, board in self.evidence.boards.items()}
        best = max(steps, key=lambda pid: steps[pid], default=self.main)
        return best if steps.get(best, 0) > steps.get(self.main, 0) else self.main

    @property
    def phase(self) -> str:
        """What the process that trains was doing last."""
        board = self.evidence.boards.get(self.trainer, {})
        error = next((e for e in self.evidence.errors if e.get("kind") == "error" and e["pid"] == self.trainer), None)
        return str(error["phase"] if error else board.get("phase", "start"))

    def count(self, slot: str) -> int:
        """A counter of the process that trains."""
        return int(self.evidence.boards.get(self.trainer, {}).get(slot, 0))

    def calls(self, what: str) -> list[Record]:
        return [call for call in self.evidence.calls if call["what"] == what]

    def unfinished(self, what: str) -> Record | None:
        """A call that began and never returned."""
        begun, ended = self.calls(what + ".begin"), self.calls(what)
        return begun[-1] if begun and (not ended or ended[-1]["t"] < begun[-1]["t"]) else None

    def says(self, pattern: str) -> str:
        """The first line of errors or stderr that matches; empty if none does."""
        for text in [str(e.get("message", "")) for e in self.evidence.errors] + [self.evidence.stderr]:
            for line in text.splitlines():
                if re.search(pattern, line):
                    return line.strip()[:300]
        return ""

    @cached_property
    def grown(self) -> list[Grown]:
        """Lines of the script by how much memory grew while they ran, most first."""
        totals: dict[str, list[Any]] = {}
        before = 0
        for stack in self._working_stacks:
            gain, before = stack.used - before, max(before, stack.used)
            threads = [thread for thread in stack.threads if any(is_users(f.file) for f in thread)]
            for frames in threads if gain > 0 else ():  # any of them may have taken it
                place = next(frame for frame in frames if is_users(frame.file))
                entry = totals.setdefault(place.place, [0, ""])
                entry[0] += gain // len(threads)
                entry[1] = frames[0].function if frames[0] is not place else entry[1]
        error = next((e for e in reversed(self.evidence.errors) if e.get("kind") == "error"), None)
        if error is not None and self.died:  # the line on which an allocation failed asked for the rest
            where = next((f for f in reversed(error["frames"]) if is_users(f)), None)
            if where is not None:
                place_text, _, function = where.rpartition(" ")
                totals.setdefault(place_text, [0, function])[0] += max(0, self.limit - self.shape.peak)
        found = [Grown(place, nbytes, inner) for place, (nbytes, inner) in totals.items()]
        return sorted(found, key=lambda item: -item.nbytes)

    @cached_property
    def _working_stacks(self) -> list[Stack]:
        """Stacks without those of processes that waited while another process answered the same question."""
        stacks = self.evidence.stacks
        return [
            stack
            for place, stack in enumerate(stacks)
            if not (
                any(thread and thread[0].function in WAITS for thread in stack.threads[-1:])
                and any(
                    other.pid != stack.pid and other.used == stack.used
                    for other in stacks[max(0, place - 4) : place + 5]
                )
            )
        ]

    def _thread(self, stack: Stack) -> tuple[Frame, ...]:
        """The thread that runs the script: its outermost frame is the script's module."""
        mine = [thread for thread in stack.threads if any(is_users(f.file) for f in thread)]
        return mine[-1] if mine else (stack.threads[-1] if stack.threads else ())

    def grew_inside(self, *spots: str) -> int:
        """Bytes by which memory grew while one of these was on the stack: a part of a file's path, or `part:function`.

        Imports of the library do not count.
        """
        wanted = [spot.partition(":")[::2] for spot in spots]
        total = before = 0
        for stack in self.evidence.stacks:
            gain, before = max(0, stack.used - before), max(before, stack.used)
            frames = [frame for frame in self._thread(stack) if frame.function != "<module>"]
            if any(part in f.file and function in ("", f.function) for f in frames for part, function in wanted):
                total += gain
        return total

    @cached_property
    def taken(self) -> int:
        """Bytes that the run took beyond what it had when its imports were done."""
        early = [point.used for point in self.points if point.phase in ("start", "import")]
        return max(1, self.shape.peak - max(early, default=0))

    @cached_property
    def visible(self) -> float:
        """The share of what was taken that one Python name held, at its most."""
        return min(1.0, max((item.last for item in self.names), default=0) / self.taken)

    @property
    def contained(self) -> float:
        """The share of what was taken that one container of the script held, at its most."""
        held = (item.last for item in self.names if item.type.startswith(("builtins.", "collections.")))
        return min(1.0, max(held, default=0) / self.taken)

    def library_share(self, *spots: str) -> tuple[float, int]:
        """How sure it is that growth inside of a library explains a death (0: it does not), and those bytes.

        Less sure than a cause that says more: what a library was doing may have a reason in the script.
        """
        grown = self.grew_inside(*spots)
        if grown < 0.2 * self.limit or not self.died:
            return 0.0, grown
        return 0.4 + 0.37 * min(1.0, grown / (0.5 * self.taken)), grown

    def grew_at(self, place: str, *, near: int = 0) -> int:
        """Bytes by which memory grew on a line of the script (or `near` lines around it)."""
        file, _, line = place.rpartition(":")
        total = 0
        for item in self.grown:
            other, _, number = item.place.rpartition(":")
            if os.path.basename(other) == os.path.basename(file) and abs(int(number) - int(line)) <= near:
                total += item.nbytes
        return total

    def code_at(self, place: str) -> str:
        """A line of the script, as far as it can still be read."""
        file, _, line = place.rpartition(":")
        try:
            return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[int(line) - 1]
        except (OSError, IndexError):
            return ""

    @cached_property
    def names(self) -> list[HolderGrowth]:
        """Names that hold memory, by how much they grew while they were watched."""
        return self._names(self.evidence.holders)

    @cached_property
    def names_after_load(self) -> list[HolderGrowth]:
        """The same from the first step on: what grows while data is loaded is no leak."""
        return self._names([record for record in self.evidence.holders if record.get("phase") not in LOADING])

    @cached_property
    def names_since_fork(self) -> list[HolderGrowth]:
        """The same since there are workers."""
        began = next((s["t"] for s in self.evidence.samples if any(p["pid"] in self.workers for p in s["procs"])), 0.0)
        return self._names([record for record in self.evidence.holders if record["t"] > began])

    def _names(self, records: list[Record]) -> list[HolderGrowth]:
        found: dict[tuple[int, str, str], HolderGrowth] = {}
        for record in records:
            for item in record["holders"]:
                key = (record["pid"], item["name"], item["where"].split(":")[0])
                old = found.get(key)
                first, first_len = (old.first, old.first_len) if old else (item["nbytes"], item["len"] or 0)
                found[key] = HolderGrowth(
                    item["name"],
                    item["where"],
                    item["type"],
                    item["detail"],
                    first,
                    item["nbytes"],
                    first_len,
                    item["len"] or 0,
                    record["pid"],
                )
        return sorted(found.values(), key=lambda item: -item.last)

    def held_by(self, name: str) -> int:
        """Most bytes that a name of the script was seen to hold, in all processes together.

        `self.` and what leads to the name do not matter.
        """
        most: dict[int, int] = {}
        for item in self.names:
            if item.word == name:
                most[item.pid] = max(most.get(item.pid, 0), item.last)
        return sum(most.values())

    @cached_property
    def peaks(self) -> dict[int, int]:
        """Most anonymous and shared bytes of each process, shared pages divided where that is known."""
        found: dict[int, int] = {}
        for sample in self.evidence.samples:
            for p in sample["procs"]:
                nbytes = p["pss"] if p["pss"] is not None else p["anon"] + p["shmem"]
                found[p["pid"]] = max(found.get(p["pid"], 0), nbytes)
        return found

    @cached_property
    def workers(self) -> dict[int, tuple[int, int]]:
        """Other processes of the tree: first and highest bytes of their own.

        A forked process shares its parent's pages until it touches them: only shares tell what it has taken since.
        """
        shares: dict[int, list[int]] = {}
        whole: dict[int, list[int]] = {}
        for sample in self.evidence.samples:
            for p in sample["procs"]:
                if p["pid"] != self.main:
                    whole.setdefault(p["pid"], []).append(p["anon"])
                    if p["pss"] is not None:
                        shares.setdefault(p["pid"], []).append(p["pss"])
        seen = {pid: shares.get(pid, values) for pid, values in whole.items()}
        return {pid: (values[0], max(values)) for pid, values in seen.items()}

    @cached_property
    def main_grown(self) -> int:
        """Bytes by which the main process grew after its first worker was seen."""
        main = [
            p["pss"] if p["pss"] is not None else p["anon"] + p["shmem"]
            for sample in self.evidence.samples
            if any(p["pid"] in self.workers for p in sample["procs"])
            for p in sample["procs"]
            if p["pid"] == self.main
        ]
        return max(0, max(main) - main[0]) if main else 0

    @cached_property
    def grown_since_fork(self) -> int:
        """Bytes that the tree took after its first forked worker was seen: pages shared until then are in neither."""
        forked = {pid for pid, board in self.evidence.boards.items() if board.get("forked") and pid in self.workers}
        first = next((s["used"] for s in self.evidence.samples if forked & {p["pid"] for p in s["procs"]}), None)
        return 0 if first is None else max(0, self.shape.peak - int(first))

    @cached_property
    def worker_share(self) -> float:
        """The workers' share of the memory near the peak; at the peak itself some may have been killed already."""
        high = [_uses(s) for s in self.evidence.samples if s["used"] > 0.9 * self.shape.peak]
        uses = max(high, key=lambda held: sum(held.values()), default={})
        return float(1 - uses.get(self.main, 0) / sum(uses.values())) if sum(uses.values()) else 0.0

    @cached_property
    def scripts(self) -> list[Path]:
        """The script that was run, and nothing else: what it imports is found from there."""
        for word in self.evidence.run["command"]:
            path = Path(self.evidence.run["cwd"], word)
            if word.endswith(".py") and path.exists():
                return [path]
        return []


def _uses(sample: Record) -> dict[int, int]:
    """What each process held, shared pages divided where that is known."""
    return {p["pid"]: p["pss"] if p["pss"] is not None else p["anon"] + p["shmem"] for p in sample["procs"]}


def is_users(file: str) -> bool:
    """Whether a file is the script's own, not Python's or a package's."""
    return not any(part in file for part in _OTHERS)

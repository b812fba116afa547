"""Reading the evidence of a run, however it ended.

Covers: merging samples, torn lines, stacks and when they were asked for, what the hooks wrote.
Does not cover: conclusions (verdict/).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.errors import NotFound
from penstock.doctor.evidence.folder import INSIDE, RECENT, RUN, SAMPLES, STDERR, STORY
from penstock.doctor.run.sample import read_board

Record = dict[str, Any]
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Stack:
    """The stacks of one process at one moment, innermost frame first; `used` is the memory in use then."""

    t: float
    pid: int
    used: int
    threads: tuple[tuple[Frame, ...], ...]


@dataclass(frozen=True)
class Evidence:
    """Everything that a run left behind."""

    folder: Path
    run: Record
    samples: list[Record]
    story: list[Record]
    stderr: str = ""
    calls: list[Record] = field(default_factory=list)
    holders: list[Record] = field(default_factory=list)
    errors: list[Record] = field(default_factory=list)
    probes: list[Record] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    boards: dict[int, Record] = field(default_factory=dict)
    torn: int = 0

    @property
    def end(self) -> Record | None:
        """The supervisor's last record; None if it did not live to write it."""
        return next((record for record in reversed(self.story) if record.get("kind") == "end"), None)


def read_evidence(folder: Path) -> Evidence:
    """Read a run folder; raises NotFound if it is none."""
    if not (folder / RUN).exists():
        raise NotFound(f"{folder} holds no evidence: there is no {RUN}. Give the folder that `penstock run` wrote.")
    run = json.loads((folder / RUN).read_text())
    lines = _Lines()
    samples = {record["t"]: record for record in lines.read(folder / SAMPLES)}
    for turn in (0, 1):
        samples.update({record["t"]: record for record in lines.read(folder / f"{RECENT}.{turn}")})
    story = lines.read(folder / STORY)
    inside = folder / INSIDE
    kinds = {kind: _all(lines, inside, kind) for kind in ("calls", "holders", "errors", "probes")}
    pids = sorted(int(path.suffix[1:]) for path in inside.glob("board.*"))
    return Evidence(
        folder=folder,
        run=run,
        samples=[samples[t] for t in sorted(samples)],
        story=story,
        stderr=_stderr(folder),
        stacks=_stacks(inside, story, _all(lines, inside, "stacks")),
        boards={pid: board for pid in pids if (board := read_board(folder, pid)) is not None},
        torn=lines.torn,
        **kinds,
    )


class _Lines:
    """Reads JSON lines and counts those that a kill tore."""

    def __init__(self) -> None:
        self.torn = 0

    def read(self, path: Path) -> list[Record]:
        found = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                self.torn += 1
                continue
            if isinstance(record, dict) and "t" in record:
                found.append(record)
        return found


def _all(lines: _Lines, inside: Path, kind: str) -> list[Record]:
    records = [record for path in inside.glob(f"{kind}.*.jsonl") for record in lines.read(path)]
    return sorted(records, key=lambda record: float(record["t"]))


def _stderr(folder: Path) -> str:
    """The kept part of stderr, older file first."""
    paths = [path for turn in (0, 1) if (path := folder / f"{STDERR}.{turn}").exists()]
    paths.sort(key=lambda path: path.stat().st_mtime)
    return "".join(path.read_bytes().decode(errors="replace") for path in paths)


def _stacks(inside: Path, story: list[Record], answers: list[Record]) -> list[Stack]:
    """Answers carry their time; those from inside of C code do not: the n-th of a process answers its n-th question."""
    asked: dict[str, dict[int, list[Record]]] = {"stacks": {}, "deep": {}}
    for record in story:
        if record.get("kind") == "asked" and record.get("what") in asked:
            for pid in record["pids"]:
                asked[record["what"]].setdefault(pid, []).append(record)
    found = []
    for answer in answers:
        before = [q for q in asked["stacks"].get(answer["pid"], ()) if q["t"] <= answer["t"]]
        threads = tuple(tuple(Frame(*frame) for frame in thread) for thread in answer["threads"])
        found.append(Stack(answer["t"], answer["pid"], before[-1]["used"] if before else 0, threads))
    for pid, questions in asked["deep"].items():
        path = inside / f"deep.{pid}"
        dumps = _dumps(path.read_text(errors="replace")) if path.exists() else []
        found += [Stack(q["t"], pid, q["used"], threads) for q, threads in zip(questions, dumps)]
    for question in story:
        if question.get("what") == "spy" and (threads := _spied(inside / str(question["file"]))):
            found.append(Stack(question["t"], question["pids"][0], question["used"], threads))
    return sorted(found, key=lambda stack: stack.t)


def _spied(path: Path) -> tuple[tuple[Frame, ...], ...]:
    """Threads of a dump by py-spy, the main one last; empty if it was refused or cut short."""
    try:
        threads = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ()
    threads.sort(key=lambda thread: thread["os_thread_id"] == thread["pid"])
    return tuple(tuple(Frame(f["filename"], f["line"], f["name"]) for f in thread["frames"]) for thread in threads)


def _dumps(text: str) -> list[tuple[tuple[Frame, ...], ...]]:
    """Split a file of faulthandler's dumps; each has one thread and a headline."""
    dumps: list[list[Frame]] = []
    for line in text.splitlines():
        if match := _FRAME.match(line):
            if dumps:
                dumps[-1].append(Frame(match[1], int(match[2]), match[3]))
        elif line.startswith(("Stack ", "Current thread ")):
            dumps.append([])
    return [(tuple(frames),) for frames in dumps]

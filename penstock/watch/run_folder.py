"""The run folder: what its files are called, and how its events are read while they are still being written.

Covers: names of files, reading events from the start or from a byte offset on, torn lines, finding runs in a folder.
Does not cover: writing events (record.py), what they mean (series.py).

The writer may be killed in the middle of a line. A line without its end is left for the next read; a line that is not
JSON is counted and passed over, and if another writer's line was glued to it, that one is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.durable import private_folder
from penstock.core.errors import NotFound

CONFIG = "config.json"
EVENTS = "events.jsonl"
CHECKPOINTS = "checkpoints"
MODEL = "model.keras"
PREPARE = "prepare.json"
METRICS = "metrics.json"
LOG = "log.txt"
RANKS = "ranks"
"""Where ranks after the first record what happens to them: ranks/1, ranks/2 and so on."""

CHUNK_NBYTES = 1 << 20
"""Events are read in pieces of this size, so that reading a long run holds a small part of it."""
LONGEST_LINE = 4 << 20
"""A line longer than this is no event of ours: it is passed over instead of being collected in memory."""
DEPTH = 2
"""How deep runs are looked for below a folder."""

OWN_PREPARE = ".prepare.json"
"""How the preparation of a model outside of its run folder ends: small.keras has small.prepare.json."""

Record = dict[str, Any]
"""One line of events.jsonl: "t" (unix seconds), "kind", "who" and the event's values."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run that was found: its name (relative to where it was looked for), its folder, its last sign of life."""

    name: str
    folder: Path
    changed_s: float
    events_nbytes: int


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank of a run records; the first one in the run's own folder."""
    home = folder if rank == 0 else folder / RANKS / str(rank)
    private_folder(folder)
    if rank:
        private_folder(folder / RANKS)
    private_folder(home)
    return home


def rank_folders(folder: Path) -> list[Path]:
    """The folders of all ranks that have recorded, in their order."""
    others = (folder / RANKS).iterdir() if (folder / RANKS).is_dir() else []
    return [folder, *sorted((path for path in others if path.name.isdigit()), key=lambda path: int(path.name))]


class Tail:
    """Reads events from a byte offset on. `offset` is where the next unread line begins: keep it to go on later."""

    def __init__(self, folder: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = Path(folder) / EVENTS
        self.offset = offset
        self.torn = 0
        """Lines that were no events, so far."""
        self.restarts = 0
        """How often the file was found to be another one: what was read before is then no part of it."""
        self._passing_over = False

    def read(self, nbytes: int = CHUNK_NBYTES) -> list[Record]:
        """The events of the next `nbytes`, as far as their lines are complete; empty if there is nothing new.

        If the file became shorter than what was read, it is another one, and reading starts again at its beginning.
        """
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset, self._passing_over = 0, False
                    self.restarts += 1
                file.seek(self.offset)
                data = file.read(nbytes)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        if not end:
            return self._lengthen(data, nbytes)
        self.offset += end
        lines = data[:end].split(b"\n")[:-1]
        if self._passing_over:
            self._passing_over = False
            lines = lines[1:]
        return [record for line in lines if line.strip() and (record := self._parse(line)) is not None]

    def _lengthen(self, data: bytes, nbytes: int) -> list[Record]:
        """The line is longer than one piece: ask for more, up to the longest line that is believed."""
        if len(data) < nbytes:
            return []  # its end is not written yet
        if nbytes < LONGEST_LINE:
            return self.read(nbytes * 2)
        self.offset += len(data)
        self.torn += 0 if self._passing_over else 1
        self._passing_over = True
        return self.read()

    def _parse(self, line: bytes) -> Record | None:
        glued = line.rfind(b'{"t":')
        for start in (0, glued) if glued > 0 else (0,):
            try:
                record = json.loads(line[start:])
            except (ValueError, RecursionError):  # the latter: arrays in arrays in arrays
                self.torn += start == 0
                continue
            if isinstance(record, dict) and isinstance(record.get("kind"), str):
                return record
            self.torn += 1
            return None
        return None


def read_events(folder: str | os.PathLike[str]) -> Iterator[Record]:
    """All complete events of a run, in the order in which they were written; none if there are none yet.

    >>> [event["kind"] for event in read_events("runs/none-here")]
    []
    """
    tail = Tail(folder)
    while True:
        before = tail.offset
        yield from tail.read()
        if tail.offset == before:
            return


def preparation_of(model_file: Path) -> Path:
    """The file that says how raw data becomes a model's input: its own beside it, else that of the folder.

    The file need not be there.

    >>> preparation_of(Path("runs/none-here/model.keras")).name
    'prepare.json'
    """
    own = model_file.with_suffix(OWN_PREPARE)
    return own if own.exists() else model_file.with_name(PREPARE)


def list_runs(folder: str | os.PathLike[str]) -> list[RunInfo]:
    """The runs in a folder, or the folder itself if it is one; the one that changed last comes first."""
    return sorted(_walk(Path(folder), "", DEPTH), key=lambda run: (-run.changed_s, run.name))


def find_run(path: str | os.PathLike[str]) -> Path:
    """The folder of one run; a folder of several gives the one that changed last. Raises NotFound if there is none."""
    if Path(path).name == EVENTS:
        path = Path(path).parent
    runs = list_runs(path)
    if not runs:
        missing = "is not there" if not Path(path).exists() else f"holds no {EVENTS}"
        raise NotFound(f"{path} is no run folder: it {missing}. Give the folder that `penstock train --out` wrote.")
    return runs[0].folder


def _walk(folder: Path, name: str, depth: int) -> Iterator[RunInfo]:
    events = folder / EVENTS
    try:
        stat = events.stat()
        yield RunInfo(name or folder.resolve().name, folder, stat.st_mtime, stat.st_size)
        return
    except (FileNotFoundError, NotADirectoryError):
        if not depth:
            return
    try:
        children = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except OSError:  # not there, or not ours to read
        return
    for child in children:
        yield from _walk(folder / child, f"{name}/{child}" if name else child, depth - 1)

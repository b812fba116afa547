"""The evidence folder: names of files, appending lines, keeping the last minutes in full.

Covers: files that are complete up to the last line whenever the writer is killed, and bounded for runs of weeks.
Does not cover: reading (read.py), what goes into a line (run/).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RUN = "run.json"
SAMPLES = "samples.jsonl"
RECENT = "recent"
STORY = "story.jsonl"
STDERR = "stderr"
INSIDE = "inside"
VERDICT_JSON, VERDICT_HTML = "verdict.json", "verdict.html"

RECENT_NBYTES = 600_000
"""Size at which the file of recent samples is exchanged; two are kept, together some minutes."""
STDERR_NBYTES = 200_000


class EvidenceLines:
    """Appends JSON lines, each with one system call: a killed writer loses at most the line it is writing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Ring:
    """Two files in turn: the newest bytes are always on disk, the oldest are dropped."""

    def __init__(self, folder: Path, name: str, nbytes: int) -> None:
        self._paths = (folder / f"{name}.0", folder / f"{name}.1")
        self._nbytes, self._turn, self._used = nbytes, 0, 0
        self._file = self._open()

    def write(self, data: bytes) -> None:
        if self._used and self._used + len(data) > self._nbytes:
            os.close(self._file)
            self._turn, self._used = 1 - self._turn, 0
            self._file = self._open()
        os.write(self._file, data)
        self._used += len(data)

    def _open(self) -> int:
        return os.open(self._paths[self._turn], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._file)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(values, indent=1))
    os.replace(fresh, path)

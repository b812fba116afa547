"""The file of events: one write a line, so that nothing written is lost and lines do not mix.

Covers: appending events as strict JSON, mending a line that a killed writer left torn.
Does not cover: which events (record.py), reading them (run_folder.py).

A line is one `write` to a file opened for appending: the kernel has it when the call returns, so it outlives kill -9,
and lines of several writers (a supervisor and its child) do not mix. There is no buffer and no lock: an event may come
from a garbage collection inside this very code, and a lock would wait for itself.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.core.durable import FILE_MODE, private_folder
from penstock.core.secrets import redacted
from penstock.watch.run_folder import EVENTS

LONGEST_LINE = 256 * 1024


class _File:
    """A descriptor that is closed when its last user is gone.

    A thread that is in the middle of a write holds it: closing by number would let that write go to whatever file is
    opened next under the same number.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class EventLog:
    """`folder`/events.jsonl, open for appending while its block runs."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.lost = 0
        """Lines that could not be written, for example because the disk was full."""
        self._file: _File | None = None
        self._pid = 0
        self._mend = False

    def __enter__(self) -> Self:
        private_folder(self.folder)
        path = self.folder / EVENTS
        self._mend = _ends_torn(path)
        self._file = _File(path)
        self._pid = os.getpid()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None

    def write(self, kind: str, who: str, values: Mapping[str, Any], time_s: float | None = None) -> None:
        """Append one line now. Never raises for a disk that is full or gone: the run matters more than its record."""
        file = self._file
        if file is None or os.getpid() != self._pid:  # a forked child's events are not this run's
            return
        line = encode(kind, who, values, time.time() if time_s is None else time_s)
        if self._mend:
            line = b"\n" + line
        try:
            written = os.write(file.fd, line)
        except OSError:
            self.lost += 1
            return
        self._mend = written < len(line)
        self.lost += self._mend


def encode(kind: str, who: str, values: Mapping[str, Any], time_s: float) -> bytes:
    """One event as one line of strict JSON. Values that JSON has no word for become numbers or text."""
    record: dict[str, Any] = {"t": round(time_s, 3), "kind": kind, "who": who}
    record |= {name: value for name, value in values.items() if name not in record}
    record = redacted(record)
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(record), separators=(",", ":"), allow_nan=False)
    if len(text) > LONGEST_LINE:
        text = json.dumps({"t": round(time_s, 3), "kind": kind, "who": who[:1000], "left_out_nbytes": len(text)})
    return text.encode() + b"\n"


def _plain(value: Any, depth: int = 8) -> Any:
    """A value as JSON knows it: NaN and infinities as text, arrays as lists, everything else by its name."""
    if isinstance(value, Mapping) and depth:
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth:
        return [_plain(item, depth - 1) for item in value]
    if hasattr(value, "tolist") and getattr(value, "size", 0) <= 10_000 and depth:  # NumPy's numbers and arrays
        return _plain(value.tolist(), depth - 1)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return str(value)[:1000]


def _ends_torn(path: Path) -> bool:
    """Whether the last line of a file has no end, because its writer was killed."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # not there, or empty
        return False

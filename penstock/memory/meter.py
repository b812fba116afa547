"""How much memory this process and its children really hold.

Covers: anonymous and shared memory of the process tree, counted once; page cache and mapped files are left out.
Does not cover: who inside the process holds it (account.py), accelerators' memory (guard/).

One process is read from /proc/PID/status in about 0.1 ms. Several may share pages (fork, shared memory), which only
/proc/PID/smaps_rollup tells apart, at 0.5 ms (idle machine) to 14 ms (busy) per GB held: its answer is taken as a
correction to the quick one and renewed only so often that it costs a small share of the time.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import cache

EXACT_SHARE = 0.02
"""Share of the time that exact readings may take."""
FAMILY_S = 0.3
"""How old the list of processes may be for a glance."""
_STATUS_NBYTES = 1 << 14
EXACT_EVERY_S = 1.0
"""Exact readings are never renewed more often than this, unless asked for or a process came or went."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process holds; memory shared with others is divided among them."""

    pid: int
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of the process tree, this process first."""

    nbytes: int
    by_process: tuple[ProcessUse, ...]


class Meter:
    """Measures the tree below `pid` (by default this process). Not for use by several threads at once."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._double: dict[int, int] = {}  # bytes of a process that quick readings count too many
        self._next_exact_s = 0.0
        self._family, self._family_s = [0], 0.0
        self.peak = 0

    def read(self, *, exact: bool = False) -> Reading:
        """Measure now; `exact` renews the correction for memory that processes share."""
        pid = os.getpid() if self._pid is None else self._pid
        uses = self._read_tree(pid, exact) if sys.platform == "linux" else _read_elsewhere(pid)
        reading = Reading(sum(use.nbytes for use in uses), tuple(uses))
        self.peak = max(self.peak, reading.nbytes)
        return reading

    def glance(self) -> int:
        """The tree's bytes, cheaply: a new process is seen a little later, what processes share as last looked up."""
        if sys.platform != "linux":
            return self.read().nbytes
        now_s = time.monotonic()
        if now_s - self._family_s > FAMILY_S:
            self._family, self._family_s = family(os.getpid() if self._pid is None else self._pid), now_s
        found = [(pid, use) for pid in self._family if (use := _read_status(pid)) is not None]
        nbytes = sum(max(0, use[1] - self._double.get(pid, 0)) for pid, use in found)
        self.peak = max(self.peak, nbytes)
        return nbytes

    def _read_tree(self, pid: int, exact: bool) -> list[ProcessUse]:
        """Read the tree from /proc."""
        quick = {pid: found for pid in family(pid) if (found := _read_status(pid)) is not None}
        if len(quick) == 1:
            self._double = {}
        elif exact or quick.keys() != self._double.keys() or time.monotonic() >= self._next_exact_s:
            self._renew(quick)
        return [
            ProcessUse(pid, name, max(0, nbytes - self._double.get(pid, 0))) for pid, (name, nbytes) in quick.items()
        ]

    def _renew(self, quick: dict[int, tuple[str, int]]) -> None:
        """Find out how much of each process is counted in another one too."""
        start_s = time.monotonic()
        for pid, (_, nbytes) in quick.items():
            shared_out = _read_rollup(pid)
            self._double[pid] = 0 if shared_out is None else nbytes - shared_out
        self._double = {pid: self._double[pid] for pid in quick}
        end_s = time.monotonic()
        self._next_exact_s = end_s + max(EXACT_EVERY_S, (end_s - start_s) / EXACT_SHARE)


def family(pid: int) -> list[int]:
    """List a process and all its descendants, parents before children."""
    if pid == os.getpid() and not _has_children():
        return [pid]
    found = [pid]
    for parent in found:  # grows while it is walked
        found.extend(_children(parent))
    return found


def _has_children() -> bool:
    """Tell whether this process has children; asking the kernel is a hundred times quicker than listing none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes nothing away from those who wait for them
    except ChildProcessError:
        return False
    return True


def _children(pid: int) -> list[int]:
    """List a process's direct children; none if it vanished."""
    if not _kernel_lists_children():
        return _children_elsewhere(pid)
    children: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return children
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children.extend(int(child) for child in file.read().split())
        except (FileNotFoundError, ProcessLookupError):  # this thread ended, the others may have children
            continue
    return children


@cache
def _kernel_lists_children() -> bool:
    """Tell whether this kernel was built to list children."""
    return os.path.exists("/proc/thread-self/children")


def _children_elsewhere(pid: int) -> list[int]:
    """List a process's direct children through psutil, which looks at every process."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _read_status(pid: int) -> tuple[str, int] | None:
    """Read a process's name and its anonymous plus shared bytes; None if it vanished or is a zombie."""
    try:
        # Three calls, not the six of open(): each gives the interpreter lock away, and may wait 5 ms to get it back.
        file = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, _STATUS_NBYTES)
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError):
        return None
    anon, shmem = _field(text, b"\nRssAnon:"), _field(text, b"\nRssShmem:")
    if anon is None or shmem is None:
        return None
    return text[6 : text.index(b"\n")].decode(errors="replace"), anon + shmem


def _read_rollup(pid: int) -> int | None:
    """Read a process's anonymous plus shared bytes, each page divided by the number of its users."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    anon, shmem = _field(text, b"\nPss_Anon:"), _field(text, b"\nPss_Shmem:")
    return None if anon is None or shmem is None else anon + shmem


def _field(text: bytes, name: bytes) -> int | None:
    """Pick "name: 123 kB" out of a kernel table, in bytes."""
    start = text.find(name)
    if start < 0:
        return None
    return int(text[start + len(name) : text.index(b"k", start + len(name))]) * 1024


def _read_elsewhere(pid: int) -> list[ProcessUse]:
    """Read the tree through psutil where there is no /proc; unique memory, so that nothing is counted twice."""
    import psutil

    uses = []
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            uses.append(ProcessUse(process.pid, process.name(), process.memory_full_info().uss))
        except psutil.Error:  # it has ended, or belongs to another user
            continue
    return uses

"""One look at a process tree and at the kernel's counters.

Covers: memory of each process, of the group, of the machine; pressure, /dev/shm, kills counted; phases from the boards.
Does not cover: how often (supervise.py), devices (device.py).
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.doctor.evidence.folder import INSIDE
from penstock.doctor.run.inject.penstock_inside.board import NBYTES, PHASES, SLOTS
from penstock.memory.cgroups import Cgroup, read_number, read_table
from penstock.memory.meter import family

EXACT_SHARE = 0.004
"""Share of the time that exact readings of shared memory may take."""
SLOW_S = 5.0
"""How often the dearer numbers are read: files open, mappings, /dev/shm, the host."""


@dataclass
class Sampler:
    """Samples the tree below `pid`; `group` is the memory group that limits it."""

    folder: Path
    pid: int
    group: Cgroup | None
    double: dict[int, int] = field(default_factory=dict)
    """Bytes that quick readings of a process count too many, since others share them, when last looked up."""
    next_exact_s: float = 0.0
    next_slow_s: float = 0.0

    def read(self) -> dict[str, Any]:
        """Measure now."""
        pids = [pid for pid in family(self.pid) if pid != self.pid]  # the shepherd itself is not the script
        processes = [found for pid in pids if (found := read_process(pid)) is not None]
        held = {int(p["pid"]): int(p["anon"] + p["shmem"]) for p in processes}
        self._correct(held)
        for process in processes:
            pid = process["pid"]
            process["pss"] = max(0, held[pid] - self.double[pid]) if pid in self.double else None
        record: dict[str, Any] = {"t": time.time(), "procs": processes, "boards": self._boards(pids)}
        if self.group is not None:
            record["group"] = read_group(self.group)
        now = time.monotonic()
        if now >= self.next_slow_s:
            record["slow"] = read_slow(pids)
            self.next_slow_s = now + SLOW_S
        return record

    def _correct(self, held: dict[int, int]) -> None:
        """Renew what is counted too often, as often as that may cost; one process alone shares nothing."""
        start_s = time.monotonic()
        if len(held) < 2:
            self.double = {}
            return
        if start_s < self.next_exact_s:
            return
        exact = {pid: nbytes for pid in held if (nbytes := _rollup(pid)) is not None}
        self.double = {pid: max(0, held[pid] - nbytes) for pid, nbytes in exact.items()}
        end_s = time.monotonic()
        self.next_exact_s = end_s + max(1.0, (end_s - start_s) / EXACT_SHARE)

    def _boards(self, pids: list[int]) -> dict[str, dict[str, Any]]:
        return {str(pid): board for pid in pids if (board := read_board(self.folder, pid)) is not None}


def read_board(folder: Path, pid: int) -> dict[str, Any] | None:
    """What a process last told of itself; None if it has no hooks."""
    try:
        data = (folder / INSIDE / f"board.{pid}").read_bytes()
    except OSError:
        return None
    count = min(len(data), NBYTES) // 8  # a run of another version may have had fewer numbers
    if not count:
        return None
    values: dict[str, Any] = dict.fromkeys(SLOTS, 0)
    values.update(zip(SLOTS, struct.unpack(f"{count}q", data[: 8 * count])))
    values["phase"] = PHASES[values["phase"]] if 0 <= values["phase"] < len(PHASES) else "start"
    return {name: value for name, value in values.items() if value}


def read_process(pid: int) -> dict[str, Any] | None:
    """Memory of one process by kind; None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    rows = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
    if b"RssAnon" not in rows:
        return None

    def nbytes(name: bytes) -> int:
        return int(rows[name].split()[0]) * 1024

    return {
        "pid": pid,
        "ppid": int(rows[b"PPid"]),
        "name": rows[b"Name"].strip().decode(errors="replace"),
        "anon": nbytes(b"RssAnon"),
        "file": nbytes(b"RssFile"),
        "shmem": nbytes(b"RssShmem"),
        "swap": nbytes(b"VmSwap") if b"VmSwap" in rows else 0,
        "peak": nbytes(b"VmHWM"),
    }


def _rollup(pid: int) -> int | None:
    """Anonymous and shared bytes of a process, each page divided by its users."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rows = dict(line.split(b":", 1) for line in text.splitlines()[1:] if b":" in line)
    if b"Pss_Anon" not in rows:
        return None
    return sum(int(rows[name].split()[0]) * 1024 for name in (b"Pss_Anon", b"Pss_Shmem"))


def read_group(group: Cgroup) -> dict[str, Any]:
    """The group's memory by kind, and its counters of kills."""
    stat = read_table(group.path / "memory.stat")
    if group.version == 1:
        usage = read_number(group.path / "memory.usage_in_bytes")
        kills = read_table(group.path / "memory.oom_control").get("oom_kill", 0)
        anon, file, shmem = stat.get("total_rss", 0), stat.get("total_cache", 0), stat.get("total_shmem", 0)
        dirty, refused = stat.get("total_dirty", 0), read_number(group.path / "memory.failcnt") or 0
    else:
        events = read_table(group.path / "memory.events")
        usage, kills, refused = (
            read_number(group.path / "memory.current"),
            events.get("oom_kill", 0),
            events.get("max", 0),
        )
        anon, file, shmem, dirty = (stat.get(name, 0) for name in ("anon", "file", "shmem", "file_dirty"))
    return {
        "usage": usage or 0,
        "anon": anon,
        "file": file - shmem if group.version == 1 else file,
        "shmem": shmem,
        "dirty": dirty,
        "kills": kills,
        "refused": refused,
    }


def ancestor_kills(group: Cgroup | None) -> int:
    """Kills for memory counted by a group and those above it: an ancestor's limit counts there."""
    if group is None:
        return 0
    name = "memory.oom_control" if group.version == 1 else "memory.events"
    return max((read_table(folder / name).get("oom_kill", 0) for folder in group.lineage), default=0)


def machine_kills() -> int:
    """Kills for memory on the whole machine."""
    return read_table(Path("/proc/vmstat")).get("oom_kill", 0)


def read_slow(pids: list[int]) -> dict[str, Any]:
    """Numbers that change slowly or cost more."""
    values: dict[str, Any] = {"kills": machine_kills(), "shm": shm_use(), "fds": 0, "maps": 0}
    for pid in pids:
        try:
            values["fds"] += len(os.listdir(f"/proc/{pid}/fd"))
            with open(f"/proc/{pid}/maps", "rb") as file:
                values["maps"] = max(values["maps"], file.read().count(b"\n"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith(("MemAvailable:", "Committed_AS:", "CommitLimit:")):
            values[line.split(":")[0]] = int(line.split()[1]) * 1024
    pressure = Path("/proc/pressure/memory")
    if pressure.exists():
        values["pressure"] = pressure.read_text().split("\n")[0]
    return values


def shm_use() -> list[int]:
    """Bytes used and bytes in all of /dev/shm; empty where there is none."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return []
    return [(found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize]

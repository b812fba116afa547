"""Where the kernel keeps this process's memory limits and counters.

Covers: finding the memory control groups (v1, v2, hybrid, inside containers), their limits and their counters.
Does not cover: which of the limits holds (limits.py), making groups (jail.py).

Inside a container the path in /proc/self/cgroup is often the host's and does not exist below the mount; the
mount's own root is then the container's group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
UNLIMITED = 1 << 60
"""v1 writes "no limit" as the largest page-aligned number, about 2**63; no machine has 2**60 bytes."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One memory control group as seen from here: `path` is its folder, `mount` the topmost visible one."""

    version: int
    path: Path
    mount: Path

    @property
    def lineage(self) -> tuple[Path, ...]:
        """The group's folder and those of its visible ancestors, nearest first."""
        if self.path == self.mount:
            return (self.path,)
        return (self.path, *(p for p in self.path.parents if p == self.mount or self.mount in p.parents))


@dataclass(frozen=True, slots=True)
class Counters:
    """What a memory group has used. `usage` and `peak` include page cache, `anon` does not; None is unknown."""

    usage: int
    peak: int | None
    anon: int
    oom_kills: int


def find_cgroups(root: Path = ROOT, pid: int | str = "self") -> tuple[Cgroup, ...]:
    """Find the memory groups of a process: one per hierarchy that controls memory, v1 first."""
    paths = _memberships(root / "proc" / str(pid) / "cgroup")
    found = []
    for version, mount, top in _mounts(root):
        if version in paths:
            path = _below(mount, top, paths[version])
            if version == 1 or any((p / "memory.max").exists() for p in Cgroup(2, path, mount).lineage):
                found.append(Cgroup(version, path, mount))
    return tuple(sorted(found, key=lambda group: group.version))


def group_limits(group: Cgroup) -> list[tuple[int, str]]:
    """List (bytes, reason) for every limit on a group or an ancestor of it."""
    names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
    limits = []
    for folder in group.lineage:
        for name in names:
            value = read_number(folder / name)
            if value is not None and value < UNLIMITED:
                limits.append((value, f"cgroup v{group.version} {name} of {_label(group, folder)}"))
    if group.version == 1:  # knows ancestors above the mount too
        value = read_table(group.path / "memory.stat").get("hierarchical_memory_limit", UNLIMITED)
        if value < UNLIMITED:
            limits.append((value, f"cgroup v1 hierarchical_memory_limit of {_label(group, group.path)}"))
    return limits


def read_counters(group: Cgroup | None = None) -> Counters | None:
    """Read what a memory group (by default this process's own) has used; None where there is none."""
    if group is None:
        groups = find_cgroups()
        if not groups:
            return None
        group = groups[0]
    stat = read_table(group.path / "memory.stat")
    if group.version == 1:
        usage, peak = "memory.usage_in_bytes", "memory.max_usage_in_bytes"
        anon = stat.get("total_rss", 0) + stat.get("total_shmem", 0)
        kills = read_table(group.path / "memory.oom_control").get("oom_kill", 0)
    else:
        usage, peak = "memory.current", "memory.peak"
        anon = stat.get("anon", 0) + stat.get("shmem", 0)
        kills = read_table(group.path / "memory.events").get("oom_kill", 0)
    used = read_number(group.path / usage)
    return None if used is None else Counters(used, read_number(group.path / peak), anon, kills)


def read_number(path: Path) -> int | None:
    """Read a file that holds one number; None if it is absent, unreadable or says "max"."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def read_table(path: Path) -> dict[str, int]:
    """Read a file of "name number" lines; empty if it is absent."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _read(path: Path) -> str:
    """Read a small kernel file, empty if it cannot be read: a missing file is no limit."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _memberships(path: Path) -> dict[int, str]:
    """Map hierarchy version to this process's path in it."""
    paths = {}
    for line in _read(path).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[1] = place
        elif number == "0" and not controllers:
            paths[2] = place
    return paths


def _mounts(root: Path) -> list[tuple[int, Path, str]]:
    """List (version, folder, the hierarchy's path mounted there) of hierarchies that may control memory."""
    mounts = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        version = {"cgroup": 1, "cgroup2": 2}.get(kind[0])
        if version == 2 or (version == 1 and "memory" in kind[2].split(",")):
            mounts.append((version, root / _unescape(fields[4]).lstrip("/"), _unescape(fields[3])))
    if mounts:
        return mounts
    usual = ((1, root / "sys/fs/cgroup/memory"), (2, root / "sys/fs/cgroup"))
    return [(version, folder, "/") for version, folder in usual if folder.is_dir()]


def _below(mount: Path, top: str, place: str) -> Path:
    """Find a group's folder below its mount, or the mount itself where the path is of another namespace."""
    if ".." in PurePosixPath(place).parts:
        return mount
    inner = PurePosixPath(place)
    if inner.is_relative_to(top):
        inner = inner.relative_to(top)
    folder = mount / str(inner).lstrip("/")
    return folder if folder.is_dir() else mount


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _label(group: Cgroup, folder: Path) -> str:
    """Name a group as the kernel does, relative to its mount."""
    return "/" + str(folder.relative_to(group.mount)).removeprefix(".")

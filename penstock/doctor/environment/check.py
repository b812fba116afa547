"""Checks of the environment.

Covers: one function per matter, each a sentence with its numbers, a level and what to change.
Does not cover: showing them (cli/doctor.py).

Everything is read below `root`, so that other machines can be laid out in a folder.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.sizes import size
from penstock.doctor.run.device import read_devices
from penstock.memory.cgroups import ROOT, find_cgroups, read_table
from penstock.memory.limits import list_limits

SMALL_SHM = 128 << 20
FEW_MAPS = 65_530
INCREMENTAL = ((3, 14, 0), (3, 14, 4))
"""Python versions whose collector was incremental and let memory grow; 3.14.5 went back."""


@dataclass(frozen=True)
class Check:
    """`level`: good, note, warning or error; `change` is empty where nothing needs to change."""

    name: str
    level: str
    text: str
    change: str = ""


@dataclass(frozen=True)
class Machine:
    """What the checks look at; tests give their own."""

    root: Path = ROOT
    env: Mapping[str, str] | None = None
    version: tuple[int, int, int] = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    release: str = platform.release()
    shm: tuple[int, int] | None = None
    """Free and total bytes of /dev/shm, where it is not this machine's own."""

    @property
    def variables(self) -> Mapping[str, str]:
        return os.environ if self.env is None else self.env

    def read(self, path: str) -> str:
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return ""


def check_environment(machine: Machine | None = None) -> list[Check]:
    """All checks, in the order in which they are worth reading."""
    machine = machine or Machine()
    checks = (_limit, _group, _shm, _swap, _huge_pages, _overcommit, _maps, _allocator, _python, _virtual, _settings)
    return [found for check in checks for found in check(machine)] + list(_devices())


def _limit(machine: Machine) -> Iterator[Check]:
    limits = list_limits(machine.root)
    least = min(limits, key=lambda item: item.nbytes)
    host = next(item for item in limits if item.reason == "host memory")
    yield Check("limit", "good", f"{size(least.nbytes)} of memory may be used ({least.reason}).")
    if least.nbytes < 0.9 * host.nbytes:
        text = (
            f"The machine has {size(host.nbytes)}, this container {size(least.nbytes)}: psutil and `free` "
            f"show the machine."
        )
        change = (
            "Libraries that size caches by the machine need a number: tf.data ram_budget, Ray object "
            "store, num_workers."
        )
        yield Check("container", "note", text, change)


def _group(machine: Machine) -> Iterator[Check]:
    for group in find_cgroups(machine.root):
        for folder in group.lineage:
            if machine.read(str((folder / "memory.oom.group").relative_to(machine.root))) == "1":
                text = "memory.oom.group is set: when memory runs out the kernel kills every process of the container."
                change = "Write evidence to a volume that outlives the pod: penstock run --out /mnt/..."
                yield Check("group kill", "note", text, change)
                return


def _shm(machine: Machine) -> Iterator[Check]:
    if machine.shm is None:
        try:
            found = os.statvfs(machine.root / "dev/shm")
        except OSError:
            yield Check(
                "/dev/shm", "warning", "There is no /dev/shm: torch's DataLoader workers cannot hand over batches."
            )
            return
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    else:
        free, total = machine.shm
    if total < SMALL_SHM:
        text = f"/dev/shm has {size(total)}: DataLoader workers die of a bus error when their batches do not fit."
        yield Check("/dev/shm", "warning", text, "docker run --shm-size=2g; it counts towards the memory limit.")
        return
    yield Check(
        "/dev/shm", "good", f"/dev/shm has {size(total)}, {size(free)} free; what is in it counts towards the limit."
    )


def _meminfo(machine: Machine) -> dict[str, int]:
    rows = (line.split() for line in machine.read("proc/meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) >= 2 and row[1].isdecimal()}


def _swap(machine: Machine) -> Iterator[Check]:
    total = _meminfo(machine).get("SwapTotal", 0)
    if total:
        text = f"{size(total)} of swap: a job that is too large becomes very slow before it dies."
        yield Check("swap", "note", text)
    else:
        yield Check("swap", "good", "No swap: a job that is too large dies at once.")


def _huge_pages(machine: Machine) -> Iterator[Check]:
    mode = machine.read("sys/kernel/mm/transparent_hugepage/enabled")
    if "[always]" in mode:
        text = (
            "Transparent huge pages are always on: small allocations may take 2 MB pages, and forked "
            "workers copy 2 MB at a touch."
        )
        yield Check("huge pages", "note", text, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")


def _overcommit(machine: Machine) -> Iterator[Check]:
    if machine.read("proc/sys/vm/overcommit_memory") == "2":
        info = _meminfo(machine)
        text = (
            f"The kernel promises no more than it has ({size(info.get('Committed_AS', 0))} of "
            f"{size(info.get('CommitLimit', 0))})."
        )
        yield Check(
            "overcommit", "warning", text, "fork() and large mappings fail early: sysctl vm.overcommit_memory=0"
        )


def _maps(machine: Machine) -> Iterator[Check]:
    text = machine.read("proc/sys/vm/max_map_count")
    if text.isdecimal() and int(text) <= FEW_MAPS:
        change = "sysctl vm.max_map_count=262144 where many tensors are shared or many files mapped."
        yield Check("mappings", "note", f"A process may have {text} memory mappings.", change)


def _allocator(machine: Machine) -> Iterator[Check]:
    preload = machine.variables.get("LD_PRELOAD", "")
    if "jemalloc" in preload or "tcmalloc" in preload:
        yield Check("allocator", "good", f"{Path(preload).name} gives freed memory back.")
    elif platform.libc_ver()[0] == "glibc" and not machine.variables.get("MALLOC_ARENA_MAX"):
        text = "glibc's malloc keeps freed memory, in up to 8 heaps per processor."
        yield Check(
            "allocator", "note", text, "MALLOC_ARENA_MAX=2, or jemalloc, if memory stays high after it was freed."
        )


def _python(machine: Machine) -> Iterator[Check]:
    shown = ".".join(map(str, machine.version))
    if INCREMENTAL[0] <= machine.version <= INCREMENTAL[1]:
        text = f"Python {shown} has the incremental collector that lets memory grow."
        yield Check("python", "warning", text, "Python 3.14.5 or later, or 3.13.")
    elif machine.version >= (3, 14, 0):
        text = f"Python {shown} starts workers with forkserver: the dataset is pickled to each of them."
        yield Check("python", "note", text, "Keep datasets small to pickle: paths and packed arrays.")
    else:
        yield Check("python", "good", f"Python {shown}; workers are forked.")


def _virtual(machine: Machine) -> Iterator[Check]:
    if "microsoft" in machine.release.lower():
        text = (
            "This is WSL: the virtual machine has half of Windows' memory unless .wslconfig (in UTF-8) says otherwise."
        )
        yield Check(
            "virtual machine", "note", text, "[wsl2] memory=24GB in %UserProfile%\\.wslconfig, then wsl --shutdown."
        )
    if "linuxkit" in machine.release.lower():
        text = "This is Docker Desktop: all containers share the virtual machine's memory."
        yield Check("virtual machine", "note", text, "Docker Desktop > Settings > Resources > Memory.")


def _settings(machine: Machine) -> Iterator[Check]:
    env = machine.variables
    if env.get("XLA_PYTHON_CLIENT_MEM_FRACTION") and env.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != "false":
        text = f"JAX takes {env['XLA_PYTHON_CLIENT_MEM_FRACTION']} of each device at its start."
        yield Check("jax", "note", text, "XLA_PYTHON_CLIENT_PREALLOCATE=false where the device is shared.")
    kills = read_table(machine.root / "proc/vmstat").get("oom_kill", 0)
    if kills:
        text = (
            f"The kernel has killed {kills} process{'es' if kills > 1 else ''} for memory since this machine started."
        )
        yield Check("kills", "note", text)


def _devices() -> Iterator[Check]:
    for device in read_devices():
        level = "warning" if device["used"] > 0.2 * device["total"] else "good"
        text = f"Device {device['index']}: {size(device['used'])} of {size(device['total'])} are in use"
        holders = f" by process {', '.join(device['pids'])}" if device["pids"] else ""
        yield Check(
            "device", level, f"{text}{holders}.", "End the other processes (nvidia-smi)." if level == "warning" else ""
        )

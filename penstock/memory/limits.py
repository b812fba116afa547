"""How much memory this process may use, and who says so.

Covers: the smallest of the container's, the process's, the host's and the user's limit; setting the user's.
Does not cover: what is in use (meter.py), how the limit is shared out (watchdog.py).
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.core.errors import InvalidInput
from penstock.core.sizes import Size, parse_size, size
from penstock.core.world import find_world
from penstock.memory.cgroups import ROOT, find_cgroups, group_limits


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of bytes and what imposes it."""

    nbytes: int
    reason: str

    def __str__(self) -> str:
        return f"{size(self.nbytes)} ({self.reason})"


def find_limit(root: Path = ROOT) -> Limit:
    """Find the smallest limit that the system puts on this process; `root` is where /proc and /sys are."""
    return min(list_limits(root), key=lambda limit: limit.nbytes)


def list_limits(root: Path = ROOT) -> list[Limit]:
    """List every limit that the system puts on this process; the host's memory is always among them.

    Ranks on one host divide what they share: a limit that the launcher is under too counts for all of them.
    """
    ranks = find_world().local_size
    limits = _group_limits(root, "self")
    shared = [*(_group_limits(root, os.getppid()) if ranks > 1 else ()), _host_limit(root)]
    own = [limit for limit in limits if limit not in shared]
    return [*own, *_process_limits(), *(_share(limit, ranks) for limit in [*limits, shared[-1]] if limit in shared)]


def _group_limits(root: Path, pid: int | str) -> list[Limit]:
    return [Limit(*found) for group in find_cgroups(root, pid) for found in group_limits(group)]


def _share(limit: Limit, ranks: int) -> Limit:
    return limit if ranks == 1 else Limit(limit.nbytes // ranks, f"{limit.reason}, shared by {ranks} ranks")


class limit:
    """Limit this process's memory from now on, or inside a `with` block only. Lower case, since it reads as a verb.

    The newest limit in force counts; leaving a block takes that block's limit away and no other. `reserve` is what the
    data must leave free for the model's growth.

    >>> with limit("1GB", reserve="200MB"):
    ...     current_reserve()
    200000000
    """

    def __init__(self, nbytes: Size, *, reserve: Size | None = None) -> None:
        self.nbytes = parse_size(nbytes)
        self.reserve = None if reserve is None else parse_size(reserve)
        if not self.nbytes:
            raise InvalidInput("A memory limit of 0 bytes leaves nothing to run in; write for example limit('2GB').")
        if self.reserve is not None and self.reserve >= self.nbytes:
            raise InvalidInput(
                f"The reserve of {size(self.reserve)} leaves nothing of the limit of {size(self.nbytes)}."
            )
        self._apply()

    def _apply(self) -> None:
        with _lock:
            _in_force.append(self)

    def __enter__(self) -> Self:
        with _lock:
            left_before = self not in _in_force
        if left_before:
            self._apply()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            _in_force.remove(self)

    def __repr__(self) -> str:
        return f"limit({size(self.nbytes)!r})"


_in_force: list[limit] = []
_lock = threading.Lock()


def current_limit(root: Path = ROOT) -> Limit:
    """The limit that holds now: the user's or the system's, whichever is smaller.

    >>> with limit("1GB"):
    ...     current_limit().nbytes <= 1_000_000_000
    True
    """
    found = find_limit(root)
    with _lock:
        newest = _in_force[-1] if _in_force else None
    if newest is not None and newest.nbytes < found.nbytes:
        return Limit(newest.nbytes, "set by the user")
    return found


def current_reserve() -> int | None:
    """What the user reserved for the model's growth, if anything."""
    with _lock:
        return _in_force[-1].reserve if _in_force else None


def _process_limits() -> list[Limit]:
    """List the limits set on this process by `ulimit`."""
    if sys.platform == "win32":
        return []
    import resource  # not on Windows

    limits = []
    for kind, name in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(Limit(soft, name))
    return limits


def _host_limit(root: Path) -> Limit:
    """The machine's memory."""
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return Limit(int(line.split()[1]) * 1024, "host memory")
    import psutil  # only off Linux: /proc is quicker and can be faked

    return Limit(psutil.virtual_memory().total, "host memory")

"""Run a command in a fresh memory limit, and see what becomes of it.

Covers: a control group (v1 or v2) around one command, or RLIMIT_DATA where groups cannot be made; peak, kill, clean-up.
Does not cover: why a command needed so much (doctor/).

The group is made below this process's own, so that no limit above is escaped. A v2 group with processes cannot have
limited children; there the new group becomes a sibling, limited to no more than this process is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from penstock.core.errors import InvalidInput, NotFound, PenstockError
from penstock.core.sizes import Size, parse_size
from penstock.memory.cgroups import Cgroup, find_cgroups, group_limits, read_counters
from penstock.memory.meter import Meter

SAMPLE_S = 0.02
"""How often the command's memory is looked at."""
_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_RLIMIT = 'ulimit -d "$0" && exec "$@"'
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a limited command ended.

    `killed`: the kernel killed something in it for memory. `peak_nbytes`: the most anonymous and shared memory seen at
    any sample. `peak_usage_nbytes`: the kernel's own high mark, which includes page cache; None if it keeps none.
    """

    returncode: int
    killed: bool
    peak_nbytes: int
    peak_usage_nbytes: int | None
    how: Literal["cgroup v1", "cgroup v2", "rlimit"]
    stdout: str | None = None
    stderr: str | None = None


def run_limited(
    argv: Sequence[str],
    nbytes: Size,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    capture: bool = False,
    timeout_s: float | None = None,
    how: Literal["any", "cgroup", "rlimit"] = "any",
) -> Outcome:
    """Run a command with at most `nbytes` of memory and report how it ended.

    Raises subprocess.TimeoutExpired after `timeout_s`. Whatever interrupts the run, the command and
    its children are killed first.
    """
    command, limit = _check(argv), parse_size(nbytes)
    with contextlib.ExitStack() as stack:
        group = None if how == "rlimit" else stack.enter_context(limited_group(limit))
        if group is None and how == "cgroup":
            raise PenstockError(
                "No memory cgroup can be made here; how='rlimit' limits one process instead of the group."
            )
        shell = [_JOIN, str(group.path)] if group else [_RLIMIT, str(limit // 1024)]
        pipes: list[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)] if capture else []
        process = subprocess.Popen(
            ["/bin/sh", "-c", *shell, *command],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdout=pipes[0] if pipes else None,
            stderr=pipes[1] if pipes else None,
            start_new_session=True,
        )
        try:
            peak = _watch(process, group, timeout_s)
        finally:
            _kill(process, group)
        return _outcome(process.returncode, peak, group, [_text(pipe) for pipe in pipes])


def _check(argv: Sequence[str]) -> list[str]:
    """Refuse a command that the shell could not find, since its own message would be lost."""
    if isinstance(argv, str) or not argv:
        raise InvalidInput("The command must be a list of words, such as ['python', 'train.py'].")
    if shutil.which(argv[0]) is None:
        raise NotFound(f"The command {argv[0]!r} was not found, or is not executable.")
    return list(argv)


def _watch(process: subprocess.Popen[bytes], group: Cgroup | None, timeout_s: float | None) -> int:
    """Wait for the command and return the most memory seen at any time."""
    peak, meter = 0, Meter(process.pid)
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        counters = read_counters(group) if group else None
        peak = max(peak, counters.anon if counters else meter.read().nbytes)
        try:
            process.wait(SAMPLE_S)
        except subprocess.TimeoutExpired:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(process.args, timeout_s or 0.0) from None
        else:
            return peak


def _kill(process: subprocess.Popen[bytes], group: Cgroup | None) -> None:
    """Kill what is left of the command: its process group, and processes that left the group but not the cgroup."""
    if process.poll() is None:  # once reaped, its number may be another's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for _ in range(100):  # a killed process may have forked just before
        members = _members(group.path) if group else []
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(folder: Path) -> list[int]:
    """List the processes in a group and in the groups that they made below it."""
    return [int(pid) for file in folder.rglob("cgroup.procs") for pid in file.read_text().split()]


def _outcome(returncode: int, peak: int, group: Cgroup | None, texts: list[str]) -> Outcome:
    """Gather what the run left behind."""
    out, err = texts or (None, None)
    if group is None:
        return Outcome(returncode, False, peak, None, "rlimit", out, err)
    counters = read_counters(group)
    kills, high = (counters.oom_kills, counters.peak) if counters else (0, None)
    name: Literal["cgroup v1", "cgroup v2"] = "cgroup v1" if group.version == 1 else "cgroup v2"
    return Outcome(returncode, kills > 0, peak, high, name, out, err)  # a fresh group's counter starts at 0


def _text(file: IO[bytes]) -> str:
    """Read back what the command wrote."""
    file.seek(0)
    return file.read().decode(errors="replace")


@contextlib.contextmanager
def limited_group(limit: int) -> Iterator[Cgroup | None]:
    """Make a limited memory group and remove it afterwards; None if this process may not."""
    group = next((made for place in _places() if (made := _make(place, limit)) is not None), None)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group.path)


def _places() -> list[Cgroup]:
    """List the groups below which a new one might be made, best first."""
    places = []
    for group in find_cgroups():
        places.append(group)
        if group.version == 2 and group.path != group.mount:
            places.append(Cgroup(2, group.path.parent, group.mount))
    return places


def _make(place: Cgroup, limit: int) -> Cgroup | None:
    """Make a group with a limit on memory and swap, or None if the kernel or the rights do not allow it."""
    path = place.path / f"penstock-{os.getpid()}-{next(_numbers)}"
    own = min((nbytes for group in find_cgroups() for nbytes, _ in group_limits(group)), default=limit)
    amount = str(min(limit, own))
    try:
        if place.version == 2 and "memory" not in (place.path / "cgroup.subtree_control").read_text().split():
            (place.path / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
    except OSError:
        return None
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if place.version == 1 else ("memory.max",)
    try:
        for name in limits:
            if (path / name).exists():
                (path / name).write_text(amount)
        if (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")
        if not (path / limits[0]).exists():
            raise FileNotFoundError(limits[0])
    except OSError:
        _remove(path)
        return None
    return Cgroup(place.version, path, place.mount)


def _remove(path: Path) -> None:
    """Remove a group; the kernel refuses for a moment after its last process died."""
    for _ in range(200):
        try:
            for folder in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
                folder.rmdir()
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise PenstockError(f"The memory cgroup {path.name} could not be removed: processes are still in it.")

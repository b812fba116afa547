"""Run a command, watch its memory, and leave evidence that outlives everyone.

Covers: starting it under a limit, sampling until it ends, passing signals on, asking for stacks and holders.
Does not cover: what the evidence means (verdict/), retries (retry.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.core.errors import InvalidInput, NotFound
from penstock.doctor.evidence.folder import (
    INSIDE,
    RECENT,
    RECENT_NBYTES,
    RUN,
    SAMPLES,
    STORY,
    EvidenceLines,
    Ring,
    write_json,
)
from penstock.doctor.run import inject
from penstock.doctor.run.ask import Asker
from penstock.doctor.run.device import read_devices
from penstock.doctor.run.kernel_log import boot_id, journal_lines, kernel_lines, since_boot
from penstock.doctor.run.sample import Sampler, ancestor_kills, machine_kills, read_board, shm_use
from penstock.doctor.run.signals import ask_process
from penstock.doctor.run.spy import Spy
from penstock.doctor.run.stderr import Stderr
from penstock.doctor.run.tripwire import TICK_S, Tripwire
from penstock.memory.cgroups import Cgroup, find_cgroups
from penstock.memory.jail import limited_group
from penstock.memory.library_env import without_settings
from penstock.memory.limits import find_limit

HEARTBEAT_S = 2.0
"""A calm run gets one lasting sample in this time; the last minutes are kept in full beside."""
CHANGE = 0.01
"""Share of the limit by which memory must change for a lasting sample before that."""
PATIENCE_S = 0.03
"""A process that runs bytecode tells its stacks well within this time."""
SHEPHERD = Path(__file__).with_name("shepherd.py")


@dataclass(frozen=True)
class Order:
    """What to run: the command, its memory in bytes (None: what the machine gives), where the evidence goes."""

    command: tuple[str, ...]
    folder: Path
    memory: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    minutes: float | None = None
    attempt: int = 0


@dataclass(frozen=True)
class Ended:
    """How the command ended: its wait status as the kernel gave it, or None if that was lost."""

    status: int | None

    @property
    def exit_code(self) -> int:
        """As a shell would say it."""
        if self.status is None:
            return 1
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code


def supervise(order: Order) -> Ended:
    """Run the command to its end; raises NotFound if there is no such command."""
    command = _checked(order.command)
    (order.folder / INSIDE).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(limited_group(order.memory)) if order.memory else None
        return _Run(order, command, group).run()


def _checked(command: Sequence[str]) -> list[str]:
    if not command:
        raise InvalidInput("There is no command. Write: penstock run -- python train.py")
    words = list(command)
    if words[0].endswith(".py") and not os.access(words[0], os.X_OK):
        words.insert(0, sys.executable)
    if shutil.which(words[0]) is None:
        raise NotFound(f"The command {words[0]!r} was not found, or is not executable.")
    return words


class _Run:
    """One attempt."""

    def __init__(self, order: Order, command: list[str], group: Cgroup | None) -> None:
        self.order, self.command, self.made = order, command, group
        groups = find_cgroups()
        self.group = group or (groups[0] if groups else None)
        self.limit = min(order.memory or find_limit().nbytes, find_limit().nbytes)
        self.asker = Asker(self.limit)
        self.main = 0
        self.known: set[int] = set()
        self.start_s = time.time()
        self.boot_s = since_boot()
        self.last = (0.0, 0)
        self.kills = 0
        self.unanswered: dict[int, tuple[float, int, int]] = {}
        self.tripwire = Tripwire(self.limit, group)
        self.spy = Spy(order.folder)

    def run(self) -> Ended:
        folder = self.order.folder
        self._describe()
        self.samples, self.story = EvidenceLines(folder / SAMPLES), EvidenceLines(folder / STORY)
        self.recent = Ring(folder, RECENT, RECENT_NBYTES)
        stderr = Stderr(folder)
        life_read, life_write = os.pipe()
        status_read, status_write = os.pipe()
        where = str(self.made.path / "cgroup.procs") if self.made else "-"
        argv = [
            sys.executable,
            "-I",
            "-S",
            str(SHEPHERD),
            str(life_read),
            str(status_write),
            where,
            "--",
            *self.command,
        ]
        shepherd = subprocess.Popen(
            argv, pass_fds=(life_read, status_write), stderr=stderr.open(), env=_environment(self.order)
        )
        os.close(life_read)
        os.close(status_write)
        try:
            with self._passing_signals():
                status = self._follow(shepherd.pid, status_read)
        finally:
            os.close(life_write)  # the shepherd kills what is left
            _wait(shepherd)
            self._kill_tagged()
            stderr.close()
        self._close(status)
        os.close(status_read)
        return Ended(status)

    def _describe(self) -> None:
        found = find_limit()
        own = self.order.memory is not None and self.order.memory <= found.nbytes
        write_json(
            self.order.folder / RUN,
            {
                "command": self.command,
                "cwd": os.getcwd(),
                "start": self.start_s,
                "boot_s": self.boot_s,
                "boot_id": boot_id(),
                "limit": self.limit,
                "limit_from": "penstock run --memory" if own else found.reason,
                "limit_kept_by": ("cgroup" if self.made else "supervision") if self.order.memory else "system",
                "group_oom": kills_all(self.group),
                "kills": {"group": ancestor_kills(self.group), "machine": machine_kills()},
                "shm": shm_use(),
                "python": sys.version.split()[0],
                "supervisor": os.getpid(),
                "attempt": self.order.attempt,
            },
        )

    def _follow(self, shepherd: int, status_fd: int) -> int | None:
        """Sample until the shepherd has told how the command ended."""
        sampler = Sampler(self.order.folder, shepherd, self.group)
        text, next_devices = b"", 0.0
        while True:
            record = sampler.read()
            if record["t"] >= next_devices:
                if devices := read_devices():
                    record["devices"] = devices
                next_devices = record["t"] + (1.0 if "devices" in record else 60.0)
            self._keep(record)
            if not self._wait_for(status_fd):
                continue
            data = os.read(status_fd, 4096)
            text += data
            for line in text.splitlines():
                if line.startswith(b"pid "):
                    self._begin(int(line.split()[1]))
                elif line.startswith(b"exit "):
                    self._keep(sampler.read())
                    return int(line.split()[1])
            if not data:  # the shepherd is gone without a word
                return None

    def _begin(self, main: int) -> None:
        if main != self.main:
            self.main = main
            self.tripwire.watch(main)

    def _wait_for(self, status_fd: int) -> bool:
        """Wait until the next sample is due: by the clock, or because memory jumps; True if the shepherd has spoken."""
        end_s = time.monotonic() + self.asker.wait_s()
        while True:
            ready, _, _ = select.select([status_fd], [], [], TICK_S)
            if ready:
                return True
            self._ask_deeper()
            if self.tripwire.moved() or time.monotonic() >= end_s:
                return False

    def _keep(self, record: dict[str, Any]) -> None:
        """Write one sample, and look closer where the sample says so."""
        used = self._used(record)
        record["used"] = used
        self.known = {int(process["pid"]) for process in record["procs"]}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self.recent.write(line)
        if record["t"] - self.last[0] >= HEARTBEAT_S or abs(used - self.last[1]) > CHANGE * self.limit:
            self.samples.write(record)
            self.last = (record["t"], used)
        walk_s = 1e-6 * max((board.get("walk_us", 0) for board in record["boards"].values()), default=0)
        for kind in self.asker.add(record["t"], used, walk_s):
            self._ask(kind, record, used)
        self._enforce(record, used)
        self._tell_kill(record)

    def _tell_kill(self, record: dict[str, Any]) -> None:
        """Say at once that a process was killed: some scripts wait for a dead worker for ever."""
        kills = record["group"]["kills"] if self.made is not None and "group" in record else 0
        if kills > self.kills and self.main in self.known:
            self.story.write({"t": record["t"], "kind": "kill", "count": kills})
            os.write(2, b"penstock: the kernel killed a process of this command for memory; the command may hang.\n")
        self.kills = max(self.kills, kills)

    def _used(self, record: dict[str, Any]) -> int:
        """Bytes that count towards the limit and cannot be taken back: the group's if it is the script's own."""
        if self.made is not None and "group" in record:
            return int(record["group"]["anon"] + record["group"]["shmem"])
        return sum(int(p["pss"] if p["pss"] is not None else p["anon"] + p["shmem"]) for p in record["procs"])

    def _ask(self, kind: str, record: dict[str, Any], used: int) -> None:
        """Ask the main process and the largest one; the answers are written by themselves."""
        sizes = {int(p["pid"]): int(p["anon"]) for p in record["procs"]}
        pids = {self.main, max(sizes, key=lambda pid: sizes[pid], default=0)} & set(sizes)
        if kind == "stacks":
            pids = {pid for pid in pids if pid not in self.unanswered}
        told = [pid for pid in pids if ask_process(pid, kind, record["boards"].get(str(pid)))]
        if told and kind != "holders":
            self._asked(kind, told, used)
        if kind == "stacks":
            now = time.monotonic()
            for pid in told:
                self.unanswered[pid] = (now, int(record["boards"][str(pid)].get("answers", 0)), used)

    def _asked(self, kind: str, pids: list[int], used: int) -> None:
        self.story.write({"t": time.time(), "kind": "asked", "what": kind, "pids": pids, "used": used})

    def _ask_deeper(self) -> None:
        """A process that has not told its stacks for a moment is inside of C code: ask in the way that works there."""
        self.spy.reap()
        for pid, (since, answers, used) in list(self.unanswered.items()):
            if time.monotonic() - since < PATIENCE_S:
                continue
            del self.unanswered[pid]
            board = read_board(self.order.folder, pid)
            if board is None or board.get("answers", 0) != answers:
                continue
            if dump := self.spy.ask(pid):
                asked = {"t": time.time(), "kind": "asked", "what": "spy", "pids": [pid], "used": used, "file": dump}
                self.story.write(asked)
            elif ask_process(pid, "deep", board):
                self._asked("deep", [pid], used)

    def _enforce(self, record: dict[str, Any], used: int) -> None:
        """Where no group could be made, the limit is kept by us; a time limit always is."""
        over = self.order.memory is not None and self.made is None and used > self.limit
        late = self.order.minutes is not None and record["t"] - self.start_s > self.order.minutes * 60
        if (over or late) and self.main in self.known:
            self.story.write({"t": record["t"], "kind": "stopped", "why": "memory" if over else "time", "used": used})
            os.kill(self.main, signal.SIGKILL)

    @contextlib.contextmanager
    def _passing_signals(self) -> Iterator[None]:
        """SIGTERM and SIGHUP go to the script; Ctrl-C reaches it by itself where the terminal sends it to all."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.story.write({"t": time.time(), "kind": "signal", "number": number})
            if self.main and not (number == signal.SIGINT and _in_foreground()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.main, number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        try:
            before = {n: signal.signal(n, pass_on) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        except ValueError:  # not in the main thread: then nobody sends us signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _kill_tagged(self) -> None:
        """What the shepherd could not kill because it was killed itself: every process that carries this run's name.

        Looked for in all of /proc, not among the sampled ones: a process may be younger than the last sample.
        """
        tag = f"PENSTOCK_RUN_FOLDER={self.order.folder}\0".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    ours = tag in file.read() + b"\0"
                if ours:
                    os.kill(int(name), signal.SIGKILL)
            except (ProcessLookupError, FileNotFoundError, PermissionError):
                continue

    def _close(self, status: int | None) -> None:
        self.story.write(
            {
                "t": time.time(),
                "kind": "end",
                "status": status,
                "kills": {"group": ancestor_kills(self.group), "machine": machine_kills()},
                "kernel": kernel_lines(self.boot_s),
                "journal": journal_lines(self.start_s),
            }
        )
        self.tripwire.close()
        self.spy.close()
        self.samples.close()
        self.story.close()
        self.recent.close()


def _environment(order: Order) -> dict[str, str]:
    env = {**without_settings(os.environ), **order.env}
    here = str(Path(inject.__file__).parent)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (here, env.get("PYTHONPATH", "")) if part)
    env["PENSTOCK_RUN_FOLDER"] = str(order.folder)
    return env


def _wait(shepherd: subprocess.Popen[bytes]) -> None:
    """The shepherd ends within moments; if it does not, it is ended."""
    try:
        shepherd.wait(10.0)
    except subprocess.TimeoutExpired:
        shepherd.kill()
        shepherd.wait()


def kills_all(group: Cgroup | None) -> bool:
    """Whether the kernel kills this group, or one above it, as a whole."""
    if group is None or group.version == 1:
        return False
    return any(
        (folder / "memory.oom.group").exists() and (folder / "memory.oom.group").read_text().strip() == "1"
        for folder in group.lineage
    )


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False

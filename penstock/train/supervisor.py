"""Starts the worker of a run, shows its progress, and restarts it when it is killed.

Covers: one call from a run folder to an exit code; signals; following events; saying why a worker died.
Does not cover: when and how small to start again (guard/supervise.py), the work (train/keras/job.py).

No framework is imported here: the parent must be small beside its worker.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.core.durable import FILE_MODE, private_files, private_folder
from penstock.core.errors import InvalidInput, OutOfMemory, PenstockError
from penstock.core.events import Event, events
from penstock.distribute import on_ray, on_torchrun
from penstock.guard.stop import STOP_FILE
from penstock.guard.supervise import DEADLY, supervise
from penstock.memory.jail import run_limited
from penstock.train.config import DATA_ENV, Config, without_password
from penstock.train.show import Display
from penstock.watch.event_log import EventLog
from penstock.watch.run_folder import CHECKPOINTS, EVENTS, LOG, Tail

DONE, FAILED, TOO_LARGE, INTERRUPTED = 0, 1, 3, 130
"""Exit codes: done; failed; wrong usage; does not fit in memory, whatever was tried; interrupted (can be resumed)."""
FOLLOW_S = 0.1
DEATHS = ".deaths.json"
"""In the run folder: the ranks that died last, until they are reported."""
_JOB = "penstock.train.keras.job"
_LOGGED = 'exec "$@" >>"$0" 2>&1'


@dataclass
class _Stop:
    """The person's wish to stop: the first signal asks, the second ends everything."""

    display: Display
    file: Path | None = None
    """What asks ranks that no signal reaches."""
    asked: int | None = None
    told: set[int] = field(default_factory=set)

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = number
        self.display.say("stopping: the run is saved first (again to stop without saving)")
        self.tell()

    def tell(self) -> None:
        """Pass the wish on to the worker there is, once."""
        if self.asked is not None and self.file is not None:
            self.file.touch()
            return
        pid = self.display.state.pid
        if self.asked is not None and pid is not None and pid not in self.told and self.display.state.stage != "ended":
            self.told.add(pid)
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                return  # it has ended already

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP while the block runs."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self.ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(folder: Path, config: Config, display: Display) -> int:
    """Train in a supervised worker until it has ended by itself; returns the exit code."""
    with private_files(), only_one(folder), EventLog(folder) as log:
        offset = (folder / EVENTS).stat().st_size if (folder / EVENTS).exists() else 0
        (folder / STOP_FILE).unlink(missing_ok=True)
        # Ray's ranks may be on other machines, where their process numbers mean somebody else's.
        stop = _Stop(display, folder / STOP_FILE if config.engine == "ray" else None)
        remove = events.listen(_Deaths(log, config, folder / DEATHS).hear)
        display.start()
        try:
            with stop.listening(), _following(Tail(folder, offset), stop):
                code = _supervised(folder, config, log)
        finally:
            remove()
            display.stop()
        return code


def _supervised(folder: Path, config: Config, log: EventLog) -> int:
    """Run the worker, and turn how it ended into an exit code and a last event."""
    argv = ["/bin/sh", "-c", _LOGGED, str(folder / LOG), *_worker(folder, config)]
    memory = config.memory_nbytes if config.memory_nbytes and can_jail(config.memory_nbytes) else None
    env = {**_environment(config), on_torchrun.DEATHS: str(folder.absolute() / DEATHS)}
    try:
        code = supervise(argv, checkpoint=folder / CHECKPOINTS, memory=memory, env=env).returncode
    except KeyboardInterrupt:
        log.write("run.end", "train", {"status": "interrupted", "error": "stopped without saving"})
        return INTERRUPTED
    except OutOfMemory as error:
        log.write("run.end", "train", {"status": "failed", "error": str(error)})
        return TOO_LARGE
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        log.write("run.end", "train", {"status": "interrupted", "error": ""})
        return INTERRUPTED
    if code not in (DONE, FAILED):
        why = f"the worker ended with {DEADLY.get(code, f'exit code {code}')}; its last words are in {folder / LOG}"
        log.write("run.end", "train", {"status": "failed", "error": why})
        return FAILED
    return code


def _worker(folder: Path, config: Config) -> list[str]:
    """The command of the worker, or of the launcher of several."""
    if config.engine == "ray":
        return on_ray.command(config.workers, config.cluster, _JOB, folder, folder / CHECKPOINTS)
    if config.workers > 1:
        return on_torchrun.command(config.workers, _JOB, str(folder))
    return [sys.executable, "-m", _JOB, str(folder)]


def can_jail(nbytes: int) -> bool:
    """Whether a memory cgroup can be made here. Without one the limit is kept by penstock alone.

    ulimits are no substitute: they count address space that frameworks reserve and never touch.
    """
    try:
        run_limited(["true"], max(nbytes, 64_000_000), how="cgroup", timeout_s=30)
    except (PenstockError, OSError, subprocess.TimeoutExpired):
        return False
    return True


def _environment(config: Config) -> Mapping[str, str]:
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "KERAS_BACKEND": config.backend}
    if config.data != without_password(config.data):
        env[DATA_ENV] = config.data
    return env


class _Deaths:
    """Says why a worker died, and what is different with the one that follows."""

    def __init__(self, log: EventLog, config: Config, told: Path) -> None:
        self._log, self._config, self._told = log, config, told
        self._kills = kernel_kills()

    def hear(self, event: Event) -> None:
        """Take the supervisor's word that it starts another worker."""
        if event.kind != "guard.restart":
            return
        values: dict[str, Any] = dict(event.values)
        before, self._kills = self._kills, kernel_kills()
        name, micro = str(values.get("death")), values.get("micro")
        # Where the supervisor does not say, the kernel's own count of kills for memory does.
        confirmed = name == "SIGKILL" and bool(values.get("confirmed", self._kills > before))
        why = self._why(name, confirmed)
        death = {"signal": name, "why": why, "confirmed": confirmed, "micro": micro, **self._ranks()}
        self._log.write("run.death", "parent", death)
        self._log.write("run.restart", "parent", {"micro": micro, "why": values.get("why", "")})

    def _ranks(self) -> dict[str, list[int]]:
        """The ranks that died, where there are several and the launcher has said which."""
        if not self._told.exists():
            return {}
        ranks: list[int] = json.loads(self._told.read_text())
        self._told.unlink()
        return {"ranks": ranks}

    def _why(self, name: str, confirmed: bool) -> str:
        if name != "SIGKILL":
            return f"{name}, which is how a failed allocation ends in native code"
        limit = f" (limit {self._config.memory})" if self._config.memory else ""
        return f"killed by the kernel for its memory{limit}" if confirmed else "killed with SIGKILL"


def kernel_kills() -> int:
    """Processes that the kernel has killed for memory since it started, in all groups."""
    stat = Path("/proc/vmstat")
    lines = stat.read_text().splitlines() if stat.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def _following(tail: Tail, stop: _Stop) -> Iterator[None]:
    """Hand events to the display while the block runs, and what is left when it ends."""
    ended = threading.Event()

    def follow() -> None:
        while True:
            last = ended.is_set()
            found = tail.read()
            for record in found:
                stop.display.take(record)
                if record["kind"] == "run.start":
                    stop.tell()
            if not found and last:
                return
            if not found:
                ended.wait(FOLLOW_S)

    thread = threading.Thread(target=follow, name="penstock-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """One parent at a time in a run folder. The kernel drops the lock with the process, however it ends."""
    private_folder(folder)
    handle = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, FILE_MODE)
    with open(handle, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{folder} is being trained by another process now.") from None
        yield

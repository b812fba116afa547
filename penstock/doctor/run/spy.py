"""Stacks by py-spy, where it is installed and allowed: read from outside, so that the script need not answer.

Covers: one dump at a time, written into the evidence; not asking again once it was refused.
Does not cover: when stacks are wanted (ask.py), reading them (evidence/read.py).

It needs the right to trace (root, or CAP_SYS_PTRACE in a container), and a process of its own for each dump, so only
a process that does not answer by itself is looked at.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from penstock.doctor.evidence.folder import INSIDE

PATIENCE_S = 5.0


class Spy:
    """Asks for dumps of other processes; `folder` holds the evidence."""

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        self._program = str(beside) if beside.exists() else shutil.which("py-spy")
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        self._count = 0

    def ask(self, pid: int) -> str:
        """Begin a dump and return the name of its file; empty if there is no py-spy, or the last dump is not done."""
        self.reap()
        if self._program is None or self._running is not None:
            return ""
        self._count += 1
        name = f"spy.{pid}.{self._count}.json"
        command = [self._program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        with (self._folder / INSIDE / name).open("wb") as file:
            self._running = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        return name

    def reap(self) -> None:
        """Let go of a dump that is done."""
        code = self._running.poll() if self._running is not None else None
        if code is None:
            return
        if code != 0:  # refused, most likely; a process that has just ended looks the same
            self._program = None
        self._running = None

    def close(self) -> None:
        """Wait for a dump that is under way; end it if it takes too long."""
        if self._running is None:
            return
        try:
            self._running.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()

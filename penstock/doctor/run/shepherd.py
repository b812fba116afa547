"""The small process between the supervisor and the script: it lets no process outlive them.

Covers: starting the script in its memory group, adopting every descendant that loses its parent, telling the supervisor
how the script ended, killing all that is left when the script or the supervisor is gone.
Does not cover: sampling (supervise.py). Only the standard library is used: it is started as a file of its own.

The supervisor's end is seen as the end of a pipe, which the kernel closes however the supervisor died.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

SUBREAPER, DEATH_SIGNAL = 36, 1
VICTIM_SCORE = "500"
"""The kernel should choose the script, not those who can tell what happened."""


def main(argv: list[str]) -> int:
    """LIFE_FD STATUS_FD GROUP_FILE -- COMMAND..."""
    life, status, group, command = int(argv[0]), int(argv[1]), argv[2], argv[4:]
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` stays in force
            signal.signal(number, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command, group, (life, status))
    os.write(status, b"pid %d\n" % child)
    try:
        return _wait(child, life, status, wake_read)
    finally:
        kill_descendants()


def _become(command: list[str], group: str, ours: tuple[int, int]) -> None:
    """In the child: enter the memory group and turn into the command."""
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # should the shepherd itself be killed
    try:
        for descriptor in ours:
            os.close(descriptor)
        if group != "-":
            with open(group, "w") as file:
                file.write(str(os.getpid()))
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(VICTIM_SCORE)
    except OSError as error:
        os.write(2, f"penstock run: {error}\n".encode())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"penstock run: {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _wait(child: int, life: int, status: int, wake: int) -> int:
    """Wait until the script or the supervisor has ended."""
    while True:
        ready, _, _ = select.select([life, wake], [], [], 5.0)
        if life in ready:  # nothing is ever written to it: this is its end
            return 1
        if wake in ready:
            os.read(wake, 512)
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == child:
                os.write(status, b"exit %d\n" % code)
                return 0


def kill_descendants() -> None:
    """Kill every process below this one; what they forked just before becomes ours and is killed next."""
    for _ in range(200):
        children = _children()
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    """The direct children of this process; those of killed ones come to us by adoption."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == me:
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

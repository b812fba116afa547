"""What the kernel and userspace killers wrote about kills since a moment.

Covers: /dev/kmsg where it may be read, the journal for systemd-oomd and earlyoom.
Does not cover: counters (sample.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

KILL = re.compile(r"oom-kill:|Killed process \d+|Out of memory|oom_reaper|invoked oom-killer")
USERSPACE = re.compile(r"systemd-oomd.*[Kk]illed|earlyoom.*sending SIG|oomd.*Killed")
MOST = 60


def boot_id() -> str:
    """This boot's identity: a log of another boot tells nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def kernel_lines(since_boot_s: float) -> list[str]:
    """Lines of the kernel's log about kills, from a moment (seconds since boot) on; empty where it may not be read."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    found = []
    try:
        while True:
            try:
                line = os.read(log, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # this line was overwritten while we read
                continue
            head, _, text = line.partition(";")
            stamp = head.split(",")[2] if head.count(",") >= 2 else ""
            if stamp.isdigit() and int(stamp) / 1e6 >= since_boot_s - 1 and KILL.search(text):
                found.append(text.split("\n")[0])
    except OSError:  # some containers let it be opened and not read
        return found[-MOST:]
    finally:
        os.close(log)
    return found[-MOST:]


def journal_lines(since_s: float) -> list[str]:
    """Lines of the journal in which a userspace killer says what it did."""
    if shutil.which("journalctl") is None or not os.path.isdir("/run/systemd/system"):
        return []
    command = ["journalctl", "--no-pager", "-q", "-n", "5000", f"--since=@{int(since_s)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return []
    return [line for line in done.stdout.splitlines() if USERSPACE.search(line)][-MOST:]


def since_boot() -> float:
    """Seconds since boot, on the kernel log's clock."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)

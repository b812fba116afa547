"""Asking a process for its stacks, holders or probes.

Covers: sending the signal only to a process that catches it; the default of these signals would end it.
Does not cover: the answers (inject/penstock_inside).
"""

from __future__ import annotations

import os
import signal
from typing import Any

PLACES = {"deep": 10, "stacks": 11, "holders": 12, "probes": 13}
NUMBERS = {kind: signal.SIGRTMIN + place for kind, place in PLACES.items()}


def ask_process(pid: int, kind: str, board: dict[str, Any] | None) -> bool:
    """Send the signal if the process has our hooks and catches it right now (a program started by exec does not)."""
    if board is None or not board.get("ready"):
        return False
    number = NUMBERS[kind]
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next((line for line in file if line.startswith(b"SigCgt:")), b"SigCgt: 0")
        if not int(caught.split()[1], 16) >> (number - 1) & 1:
            return False
        os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True

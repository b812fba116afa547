"""A worker process: takes a block, runs the users' functions on it, gives the result back.

Covers: the child's side of processes.py, started with file descriptors as arguments.
Does not cover: when to use processes (tune.py), how bytes travel (shared_memory.py).

It never imports a framework by itself; a user's function brings in what it needs. Rows are identified by their number
in the block: only the parent knows where they came from, and puts that into messages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

import cloudpickle
import numpy as np

from penstock.core.block import Block
from penstock.core.errors import MapError
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.shared_memory import Link, Store, open_columns, pack, packed_nbytes, shut_columns, unpack
from penstock.plan.steps import Map

_PR_SET_PDEATHSIG = 1


class RowName(str):
    """Stands for 'where row n came from' until the parent, who knows, puts it in."""

    row: int


def row_name(row: int) -> RowName:
    """The origin of a row, as far as it is known here."""
    made = RowName(f"\x00{row}\x00")
    made.row = row
    return made


class Worker:
    """Answers the parent's messages one by one."""

    def __init__(self, link: Link, inbox: Store, outbox: Store) -> None:
        self._link, self._inbox, self._outbox = link, inbox, outbox
        self._programs: dict[int, Fused] = {}

    def serve(self) -> None:
        """Work until the parent ends the connection."""
        self._link.send(("ready",))
        while (message := self._link.receive()) is not None:
            if message[0] == "load":
                self._load(*message[1:])
            else:
                self._run(*message[1:])
            sys.stdout.flush()

    def _load(self, number: int, sizes: list[int]) -> None:
        try:
            self._programs[number] = unpack(self._inbox.read(sizes))
        except Exception as error:
            self._link.send(("unloadable", f"{type(error).__name__}: {error}"))
        else:
            self._link.send(("loaded",))

    def _run(self, number: int, key: tuple[int | str, ...], whole: bool, sizes: list[int], granted: int) -> None:
        columns, tree = unpack(self._inbox.read(sizes))
        block = Block(shut_columns(columns), tree, row_name)
        del columns
        fused = self._programs[number]
        skipped = _Skipped(fused)
        began = time.process_time()
        try:
            result: dict[str, Any] = _described(fused.on_batch(block, key) if whole else fused(block, key))
        except BaseException as error:
            result = _failure(error)
        result["skipped"], result["cpu_s"] = skipped.told(), time.process_time() - began
        buffers = pack(result)
        nbytes = packed_nbytes(buffers)
        if nbytes > granted:  # memory is leased before it is filled, on this side too
            self._link.send(("need", nbytes))
            if self._link.receive() is None:
                return
        self._link.send(("done", self._outbox.write(buffers)))


class _Skipped:
    """What `on_error="skip"` let pass in one block, to be counted in the parent, where the limits are."""

    def __init__(self, fused: Fused) -> None:
        self._of: dict[int, tuple[list[tuple[str, str]], Any]] = {}
        for number, step in enumerate(fused.steps):
            if isinstance(step, Map) and step.on_error is not None:
                bad: list[tuple[str, str]] = []
                step.on_error.max_errors, step.on_error.seen = None, 0
                step.on_error.listener = lambda error, bad=bad: bad.append((str(error.where), error.reason))
                self._of[number] = (bad, step.on_error)

    def told(self) -> list[tuple[int, list[tuple[str, str]], int]]:
        return [(number, bad, policy.seen) for number, (bad, policy) in self._of.items()]


def _described(block: Block | None) -> dict[str, Any]:
    """A result, with the number of the input row that each of its rows came from (None: unknown; True: as before)."""
    if block is None:
        return {"block": None}
    rows: np.ndarray | bool | None = None
    if block.origin is row_name:
        rows = True
    elif block.origin is not None:
        rows = np.array([getattr(block.origin(i), "row", -1) for i in range(block.nrows)], dtype=np.int64)
    return {"block": (open_columns(block.columns), block.tree, rows)}


def _failure(error: BaseException) -> dict[str, Any]:
    """An exception as what can be rebuilt in the parent, with its traceback as text."""
    cause = error.__cause__ if isinstance(error, MapError) and error.__cause__ is not None else error
    text = "".join(traceback.format_exception(cause))
    where = (error.function, str(error.where)) if isinstance(error, MapError) else None
    try:
        carried = cloudpickle.dumps(cause)
        cloudpickle.loads(carried)  # many exceptions can be pickled and not read back
    except Exception:
        carried = None
    return {"error": carried, "kind": type(cause).__name__, "text": str(cause), "trace": text, "where": where}


def _die_with(parent: int) -> None:
    """End when the parent ends, even in the middle of a function."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """The process: file descriptors of the connection and the two stores, and the parent's number, as arguments."""
    link, inbox, outbox, parent = (int(argument) for argument in sys.argv[1:5])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _die_with(parent)
    if len(sys.argv) > 5:
        os.environ["PYTHONPATH"] = sys.argv[5]  # what the user's had been: programs started from here see that one
    else:
        os.environ.pop("PYTHONPATH", None)
    Worker(Link(socket.socket(fileno=link)), Store(inbox), Store(outbox)).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing to tidy up, and a framework's own tidying may take seconds

"""Worker processes for functions that keep the interpreter lock to themselves.

Covers: starting and ending the processes, handing blocks over through shared memory, rebuilding results and errors.
Does not cover: when processes pay (tune.py, placement.py), the child's side (child.py).

A thread of the pool that runs a job hands its block to a free process and waits without the interpreter lock. One
thread, the keeper, starts the processes and ends them: the kernel ends a child with the thread that started it, so
that thread must live as long as they may.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.block import Block, Origin
from penstock.core.errors import BadData, InvalidInput, MapError, Stopped
from penstock.engine.streams.transform import Fused
from penstock.engine.workers.shared_memory import (
    Link,
    Store,
    open_columns,
    pack,
    pack_function,
    packed_nbytes,
    shut_columns,
    unpack,
)
from penstock.memory.budget import PROCESSES, Budget, Lease
from penstock.memory.meter import Meter
from penstock.order.permutation import Key
from penstock.plan.steps import Map, function_name

BASE_NBYTES = 64_000_000
"""What a process holds before it has done anything, leased until it can be measured (numpy and pyarrow: 25-40 MB)."""

_BOOT = """
import importlib.util, sys
spec = importlib.util.find_spec("penstock")
package = sys.modules["penstock"] = importlib.util.module_from_spec(spec)
def later(name):
    del package.__getattr__
    spec.loader.exec_module(package)
    return getattr(package, name)
package.__getattr__ = later
from penstock.engine.workers.child import main
main()
"""
"""Starts a child without the readers and their libraries (0.5 s and 40 MB less), until a function asks for them."""

_MEASURE_EVERY_S = 1.0
_GRACE_S = 0.5
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class RemoteTracebackError(Exception):
    """The traceback of an error inside a worker process, as text; the `__cause__` of that error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class UnloadableError(Exception):
    """A function cannot be rebuilt in a worker process. Raised before a block is touched."""


class PackedFunctions:
    """Users' functions, packed once for all processes."""

    def __init__(self, number: int, fused: Fused) -> None:
        self.number, self.fused = number, fused
        self.buffers = pack_function(fused)
        self.nbytes = packed_nbytes(self.buffers)
        self.name = " + ".join(function_name(getattr(step, "function", step)) for step in fused.steps)  # type: ignore[arg-type]


class _Child:
    """One process, used by one thread at a time."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.inbox, self.outbox = Store.make(), Store.make()
        self.loaded: set[int] = set()
        self._own, self._shared = BASE_NBYTES, [0, 0]
        self._measured_s = 0.0
        ours, theirs = socket.socketpair()
        self.link = Link(ours)
        fds = (theirs.fileno(), self.inbox.fd, self.outbox.fd)
        command = [sys.executable, "-P", "-c", _BOOT, *map(str, fds), str(os.getpid())]
        if "PYTHONPATH" in os.environ:
            command.append(os.environ["PYTHONPATH"])
        with theirs:
            self.process = subprocess.Popen(
                command, env=_environment(), stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0
            )

    def reserve(self, which: int, nbytes: int) -> None:
        """Lease before filling: the shared bytes, and as many for the process's own copy."""
        if nbytes > self._shared[which]:
            self._shared[which] = nbytes
            self.lease.resize(self._own + 2 * sum(self._shared))

    @property
    def granted(self) -> int:
        """Bytes the process may write without asking."""
        return self._shared[1]

    def measure(self) -> None:
        """Correct the lease by what the process really holds, now and then."""
        now = time.monotonic()
        if now - self._measured_s > _MEASURE_EVERY_S:
            self._measured_s = now
            held = Meter(self.process.pid).read(exact=True).nbytes
            self._own = max(BASE_NBYTES // 2, held - sum(self._shared))
            self.lease.resize(self._own + 2 * sum(self._shared))

    def drop_buffers(self) -> None:
        self.inbox.free()
        self.outbox.free()
        self._shared = [0, 0]
        self.lease.resize(self._own)

    def ended(self) -> str:
        """How the process ended, in words."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        hint = " (often the system's answer to a lack of memory)" if -code == signal.SIGKILL else ""
        return f"was ended by {name}{hint}"

    def close(self) -> None:
        """The process has ended: free its buffers."""
        self.link.close()
        self.inbox.close()
        self.outbox.close()
        self.lease.close()


class Processes:
    """The worker processes of one run. Nothing starts before `start`."""

    def __init__(self, budget: Budget, count: int) -> None:
        self.count = count
        self.failure = ""
        self._budget = budget
        self._children: list[_Child] = []
        self._idle: list[_Child] = []
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None
        self._settled = threading.Event()

    def start(self, *, must: bool) -> bool:
        """Begin to start the processes unless that was done; False if the budget has no room and need not be overdrawn.

        One that must start gets its memory in any case: without it nothing would ever move.
        """
        with self._change:
            if self._closing.is_set():
                raise Stopped("The stream is closed.")
            if self._keeper is not None:
                return True
            leases = [lease for _ in range(self.count) if (lease := self._try_lease()) is not None]
            if not leases and must:
                leases = [self._budget.force(BASE_NBYTES, who=PROCESSES)]
            if not leases:
                return False
            self._keeper = threading.Thread(target=self._keep, args=(leases,), name="penstock-keeper", daemon=True)
            self._keeper.start()
            return True

    @property
    def ready(self) -> bool:
        """Whether the processes wait for work."""
        return self._settled.is_set() and not self.failure

    def wait_ready(self) -> None:
        """Wait until the processes have started."""
        self._settled.wait()
        if self.failure and not self._closing.is_set():
            raise InvalidInput(f"Worker processes did not start: {self.failure}. Use workers='thread'.")

    @property
    def pids(self) -> list[int]:
        """Process ids, for monitoring."""
        return [child.process.pid for child in self._children]

    def run(
        self, program: PackedFunctions, block: Block, key: Key, *, whole: bool = False
    ) -> tuple[Block | None, float]:
        """The result of a program on a block, and the processor seconds it took; waits for a free process."""
        child = self._take()
        try:
            if program.number not in child.loaded:
                self._load(child, program, block)
            buffers = pack((open_columns(block.columns), block.tree))
            child.reserve(0, packed_nbytes(buffers))
            sizes = child.inbox.write(buffers)
            answer = self._ask(child, program, block, ("run", program.number, key, whole, sizes, child.granted))
            while answer[0] == "need":
                child.reserve(1, answer[1])
                answer = self._ask(child, program, block, ("granted",))
            result = unpack(child.outbox.read(answer[1]))
            child.measure()
        finally:
            self._put_back(child)
        return _rebuilt(result, program, block), result["cpu_s"]

    def drop_idle(self) -> None:
        """Give up the shared memory of processes without work."""
        with self._change:
            for child in self._idle:
                child.drop_buffers()

    def close(self) -> None:
        """End all processes: those at work finish their block if that is a matter of moments."""
        with self._change:
            self._closing.set()
            self._change.notify_all()
        keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join()

    def _try_lease(self) -> Lease | None:
        if self._budget.total < BASE_NBYTES:
            return None
        return self._budget.try_lease(BASE_NBYTES, who=PROCESSES)

    def _take(self) -> _Child:
        with self._change:
            while not self._idle and not self._closing.is_set():
                self._change.wait()
            if self._closing.is_set():
                raise Stopped("The stream is closed.")
            return self._idle.pop()

    def _put_back(self, child: _Child) -> None:
        with self._change:
            self._idle.append(child)
            self._change.notify()

    def _load(self, child: _Child, program: PackedFunctions, block: Block) -> None:
        child.reserve(0, program.nbytes)
        answer = self._ask(child, program, block, ("load", program.number, child.inbox.write(program.buffers)))
        if answer[0] != "loaded":
            raise UnloadableError(answer[1])
        child.loaded.add(program.number)

    def _ask(self, child: _Child, program: PackedFunctions, block: Block, message: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send and wait for the answer; a process that is gone is an error that names what it was at."""
        try:
            child.link.send(message)
            answer = child.link.receive()
        except OSError:
            answer = None
        if answer is not None:
            return answer
        if self._closing.is_set():
            raise Stopped("The stream is closed.")
        last = max(0, block.nrows - 1)
        where = f"{block.where(0)} to {block.where(last)} ({block.nrows} rows)"
        died = ChildProcessError(f"worker process {child.process.pid} {child.ended()}")
        raise MapError(program.name, where, died) from died

    def _keep(self, leases: Sequence[Lease]) -> None:
        """The keeper: start, wait until all are there, wait for the end, end them."""
        left = list(leases)
        try:
            while left and not self._closing.is_set():
                self._children.append(_Child(left[0]))
                left.pop(0)
            self._greet()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        for lease in left:
            lease.close()
        self._settled.set()
        if not self.failure:
            self._closing.wait()
        self._end()

    def _greet(self) -> None:
        """Wait for each child's first word."""
        for child in self._children:
            while not select.select([child.link], [], [], 0.05)[0]:
                if self._closing.is_set():
                    return
            if child.link.receive() is None:
                self.failure = f"process {child.process.pid} {child.ended()}"
                return
        with self._change:
            self._idle.extend(self._children)
            self._change.notify_all()

    def _end(self) -> None:
        for child in self._children:
            child.link.end_sending()
        until = time.monotonic() + (_GRACE_S if not self.failure else 0)
        for child in self._children:
            try:
                child.process.wait(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        with self._change:
            if self._settled.is_set() and not self.failure:  # threads that waited for a child come back with an error
                self._change.wait_for(lambda: len(self._idle) == len(self._children), timeout=5)
        for child in self._children:
            child.close()


def _environment() -> dict[str, str]:
    """The parent's, with its module path, and one thread per process: there are as many processes as processors."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**dict.fromkeys(_ONE_THREAD, "1"), "MALLOC_ARENA_MAX": "2", **os.environ, "PYTHONPATH": path}


def _rebuilt(result: dict[str, Any], program: PackedFunctions, block: Block) -> Block | None:
    """The block or the error that a process sent, with the origins that only this side knows."""
    _count(result["skipped"], program.fused, block)
    if "trace" in result:
        raise _error(result, block)
    if result["block"] is None:
        return None
    columns, tree, rows = result["block"]
    return Block(shut_columns(columns), tree, None if rows is None else _origin(block.origin, rows))


def _origin(origin: Origin | None, rows: np.ndarray | bool) -> Origin | None:
    if origin is None or isinstance(rows, bool) or np.array_equal(rows, np.arange(len(rows))):
        return origin
    return lambda i: origin(int(rows[i]))


def _count(skipped: list[tuple[int, list[tuple[str, str]], int]], fused: Fused, block: Block) -> None:
    """Book what was skipped where `max_errors` is kept: here, for all processes together."""
    for number, bad, good in skipped:
        step = fused.steps[number]
        assert isinstance(step, Map) and step.on_error is not None
        for where, reason in bad:
            step.on_error.bad(BadData(_named(where, block), _named(reason, block)))
        step.on_error.good(good)


def _named(text: str, block: Block) -> str:
    """Rows by their origin instead of their number."""
    return re.sub("\x00(\\d+)\x00", lambda found: block.where(int(found[1])), text)


def _error(result: dict[str, Any], block: Block) -> BaseException:
    if result["error"] is not None:
        cause: BaseException = pickle.loads(result["error"])
        cause.args = tuple(_named(a, block) if isinstance(a, str) else a for a in cause.args)
    else:  # it could not travel: one of the same name and words
        cause = type(result["kind"], (Exception,), {})(_named(result["text"], block))
    cause.__cause__ = RemoteTracebackError(_named(result["trace"], block))
    if result["where"] is None:
        return cause
    function, where = result["where"]
    error = MapError(function, _named(where, block), cause)
    error.__cause__ = cause
    return error

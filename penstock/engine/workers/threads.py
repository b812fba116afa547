"""Threads that run jobs, the most urgent first.

Covers: the pool, jobs made of parallel parts, and waiting for them.
Does not cover: how many threads are right (tune.py), other processes (processes.py).

Urgent means close to the consumer: what is in flight drains before more is read.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.errors import Stopped

Part = Callable[[], Any]


class Job:
    """One or more parts that may run at the same time; done when all are. `result` is that of the first part."""

    __slots__ = ("_gate", "_left", "_lock", "error", "result")

    def __init__(self, parts: int) -> None:
        self._left = parts
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._left == 0

    def wait(self) -> Any:
        """The result, or the first error raised again."""
        self._gate.acquire()
        self._gate.release()
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # the frame must not keep what the failed job held
        return self.result

    def finish_part(self, index: int, result: Any, error: BaseException | None) -> None:
        """Called by the pool as each part ends."""
        with self._lock:
            if index == 0:
                self.result = result
            if error is not None and self.error is None:
                self.error = error
            self._left -= 1
            last = self._left == 0
        if last:
            self._gate.release()


class WorkClock:
    """Time spent by workers: busy on a processor, and inside a job at all (the difference is waiting)."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.wall_s = 0.0
        self.jobs = 0
        self._lock = threading.Lock()

    def add(self, cpu_s: float, wall_s: float) -> None:
        with self._lock:
            self.cpu_s += cpu_s
            self.wall_s += wall_s
            self.jobs += 1

    def add_cpu(self, cpu_s: float) -> None:
        """Count what a worker process computed while a thread waited for it."""
        with self._lock:
            self.cpu_s += cpu_s


class Pool:
    """Daemon threads over one priority queue. Nothing starts before the first job."""

    def __init__(self, threads: int, name: str = "penstock-worker") -> None:
        self.size = self.cores = threads
        self.clock = WorkClock()
        self._name = name
        self._heap: list[tuple[int, int, Job, int, Part]] = []
        self._order = itertools.count()
        self._ready = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, parts: Sequence[Part], *, urgency: int) -> Job:
        """Queue a job; a smaller urgency runs earlier, equals run in order."""
        job = Job(len(parts))
        with self._ready:
            if self._closed:
                raise Stopped("The stream is closed.")
            for index, part in enumerate(parts):
                heapq.heappush(self._heap, (urgency, next(self._order), job, index, part))
            # Threads are made when there is work for them, and stay until the pool closes.
            wanted = min(self.size, len(self._threads) + max(0, len(parts) - self._idle))
            while len(self._threads) < wanted:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._ready.notify(len(parts))
        return job

    @property
    def closed(self) -> bool:
        return self._closed

    def resize(self, threads: int) -> None:
        """Change the number of threads; surplus ones end after their job."""
        with self._ready:
            self.size = max(1, threads)
            self._ready.notify_all()

    def tasks(self) -> list[int]:
        """The kernel's numbers of the threads."""
        with self._ready:
            return [thread.native_id for thread in self._threads if thread.native_id is not None]

    def close(self, *, wait: bool = True) -> None:
        """Drop queued jobs, let running ones end, join the threads if `wait`."""
        with self._ready:
            self._closed = True
            dropped, self._heap = self._heap, []
            self._ready.notify_all()
        for _, _, job, index, _ in dropped:
            job.finish_part(index, None, Stopped("The stream is closed."))
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()
        if wait:
            self._threads = []

    def _work(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                while not self._heap and not self._closed and len(self._threads) <= self.size:
                    self._ready.wait()
                self._idle -= 1
                if self._closed:
                    return
                if len(self._threads) > self.size:
                    self._threads.remove(threading.current_thread())
                    self._ready.notify()
                    return
                _, _, job, index, part = heapq.heappop(self._heap)
            self._run(job, index, part)
            del job, part  # an idle thread must not keep what its last job held

    def _run(self, job: Job, index: int, part: Part) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        result, error = None, None
        try:
            result = part()
        except BaseException as raised:
            error = raised.with_traceback(raised.__traceback__)
        self.clock.add(time.thread_time() - cpu, time.perf_counter() - wall)
        job.finish_part(index, result, error)

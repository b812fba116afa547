"""One contestant in a process of its own. Started by the harness, which measures this process from outside.

Covers: python -m benchmarks.child MODULE CONTESTANT JSON; waits for "go", then prints one line of JSON per phase.
Does not cover: rounds, memory, reports (harness.py, report.py). It must not import penstock: the peers do without it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Build = Callable[[], Iterable[tuple[Any, Any]]]


class Again:
    """An iterable that calls a generator function for every pass."""

    def __init__(self, function: Callable[[], Iterator[tuple[Any, Any]]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._function()


def forever(batches: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Pass after pass, for those that do not repeat by themselves."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("An epoch without a batch.")


def cpu_s() -> float:
    """Processor time of this process and its children, living and gone."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used) + sum(map(_cpu_of, _living(os.getpid())))


def _living(pid: int) -> Iterator[int]:
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children = file.read().split()
        except OSError:  # the thread has ended
            continue
        for child in map(int, children):
            yield child
            yield from _living(child)


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:  # it has ended: from now on it is among the children that are gone
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(batch: tuple[Any, Any], shape: list[int], dtype: str) -> None:
    """Refuse output that is not equal to everybody else's."""
    x, y = batch
    found = str(getattr(x.dtype, "name", x.dtype)).removeprefix("torch.")
    if list(x.shape) != shape or found != dtype or list(y.shape)[:1] != shape[:1]:
        raise AssertionError(f"got {tuple(x.shape)} {found} and {tuple(y.shape)}, wanted {tuple(shape)} {dtype}")


def measure_rate(build: Build, task: dict[str, Any]) -> dict[str, float]:
    """Rows a second and processor time a row, from `warm_s` after the first batch on."""
    began = time.perf_counter()
    batches = forever(build())
    check(next(batches), task["shape"], task["dtype"])
    first_s = time.perf_counter() - began
    warm = time.perf_counter() + task["warm_s"]
    while time.perf_counter() < warm:
        check(next(batches), task["shape"], task["dtype"])
    rows, cpu, start = 0, cpu_s(), time.perf_counter()
    now = start
    while now < start + task["window_s"]:
        x, _ = next(batches)
        rows += int(x.shape[0])
        now = time.perf_counter()
    wall, used = now - start, cpu_s() - cpu
    return {"rate": rows / wall, "cpu_us": used / rows * 1e6, "first_s": first_s, "rows": rows, "wall_s": wall}


def measure_idle(build: Build, task: dict[str, Any]) -> dict[str, float]:
    """The share of time a consumer waits whose step needs `load` of what the machine can deliver."""
    free = measure_rate(build, task)
    step_s = task["shape"][0] / free["rate"] / task["load"]
    batches = forever(build())
    next(batches)
    waited = stepped = longest = 0.0
    end = time.perf_counter() + task["idle_s"]
    while (before := time.perf_counter()) < end:
        got = next(batches)
        taken = time.perf_counter()
        del got
        time.sleep(step_s)
        waited += taken - before
        longest = max(longest, taken - before)
        stepped += time.perf_counter() - taken
    return {
        "rate": free["rate"],
        "step_ms": step_s * 1e3,
        "waited": waited / (waited + stepped),
        "longest_ms": longest * 1e3,
    }


def main(module: str, contestant: str, told: str) -> None:
    """Import, wait for the signal, measure."""
    task = json.loads(told)
    try:
        build = importlib.import_module(module).CONTESTANTS[task["group"]][contestant](task["path"])
        gc.collect()
        print("READY", flush=True)
        sys.stdin.readline()
        found = {"rate": measure_rate, "idle": measure_idle}[task["measure"]](build, task)
        print("RESULT " + json.dumps(found), flush=True)
        sys.stdin.readline()  # the harness takes a last look at memory before anything is torn down
    except BaseException:
        print("FAILED " + json.dumps(traceback.format_exc(limit=-3)), flush=True)
    # Pools of threads and workers may take long to stop, or hang; the harness ends this process's group.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

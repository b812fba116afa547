"""The smallest limit that trains: the guard against micro-batches written by hand.

Run: python -m benchmarks.guard_memory [STACK ...] [--optimizer NAME] [--step MB] [--minutes N] [--go-on] [--dry]
Writes results/guard_memory.json and .md after each pair unless --dry is given. After --minutes no pair is begun; with
--go-on the run goes on with the pairs that it has not measured, else a new one begins, for which earlier numbers only
say where the search starts. The page has the rows of one run.
Covers: SGD with momentum, Adam, AdamW and Adafactor on torch, Keras-torch, Keras-TensorFlow and JAX; "torch-wide" is
76 MB of parameters, SGD with momentum, batches of 1,024 rows, an allocator as it comes, and a guard that finds the
micro-batch. Does not cover: time (guard_overhead.py).

For each pair the smallest RLIMIT_DATA above the loaded framework is found in steps of a few megabytes: away from where
an earlier run ended, in strides that double, then by bisection. Each try is a fresh process, two at a time: it is
memory that counts, which other work on the machine does not change. TensorFlow and JAX abort on some failed
allocations; that counts as not trained, on both sides.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.report import machine  # noqa: E402

STACKS = {
    "torch-wide": "torch",
    "torch": "torch",
    "keras-torch": "torch",
    "keras-tensorflow": "tensorflow",
    "jax": "jax",
}
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adafactor")
RESULTS = ROOT / "benchmarks/results/guard_memory.json"
MB = 10**6
MOST = 640 * MB
TARGET = 1.1
FIRST = 160 * MB
"""Where the search begins without an earlier number."""
AT_ONCE = 2
_servers: dict[str, subprocess.Popen[str]] = {}
_turns = {stack: threading.Lock() for stack in STACKS}


def surroundings(stack: str) -> dict[str, str]:
    """What each try runs in."""
    steady = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"}
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return {
        **own,
        **({} if stack == "torch-wide" else steady),
        "KERAS_BACKEND": STACKS[stack],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }


def trains(stack: str, optimizer: str, side: str, nbytes: int) -> bool:
    """Whether one fresh process trains within the limit. torch is loaded once and forked; the others cannot be."""
    if STACKS[stack] == "torch":
        with _turns[stack]:
            return _answer(stack, f"{optimizer} {side} {nbytes}\n") == "0"
    command = [sys.executable, str(ROOT / "benchmarks/guard_memory_job.py"), stack, optimizer, side, str(nbytes)]
    done = subprocess.run(command, env=surroundings(stack), capture_output=True, timeout=600, check=False)
    return done.returncode == 0


def _answer(stack: str, asked: str) -> str:
    """What the stack's server says to a try."""
    if stack not in _servers:
        job = [sys.executable, str(ROOT / "benchmarks/guard_memory_job.py"), "serve", stack]
        _servers[stack] = subprocess.Popen(
            job,
            env=surroundings(stack),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    server = _servers[stack]
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(asked)
    server.stdin.flush()
    return server.stdout.readline().strip()


def smallest(stack: str, optimizer: str, side: str, step: int, near: int | None = None) -> int | None:
    """The smallest limit, to within a step, that trains; None if even the largest does not. `near` is a guess."""
    at, most = max(1, (near or FIRST) // step), MOST // step
    stride, up = 1, not trains(stack, optimizer, side, at * step)
    low, high = (at, most + 1) if up else (0, at)
    while high - low > 1:
        if (up and high > most) or (not up and low == 0):
            at = min(low + stride, most) if up else max(1, high - stride)
            stride *= 2
        else:
            at = (low + high) // 2
        if trains(stack, optimizer, side, at * step):
            high = at
        else:
            low = at
    return high * step if high <= most else None


def table(results: dict[str, dict[str, Any]], run: str) -> str:
    """The run's results as a page."""
    lines = [
        "# The smallest limit that trains",
        "",
        "`python -m benchmarks.guard_memory`: bytes above the loaded framework (RLIMIT_DATA), by bisection. A network",
        "of 12 MB of parameters, batches of 128 rows in micro-batches of 16, and blocks of 128 KB that go back when",
        "freed (MALLOC_MMAP_THRESHOLD_). torch-wide: 76 MB of parameters, batches of 1,024 rows, glibc as it is, and",
        "a guard that is not told the micro-batch. The aim is a ratio of at most 1.1.",
        "",
        f"One run, {run}.",
        "",
        "| stack | optimizer | by hand | with the guard | ratio |",
        "|---|---|---|---|---|",
    ]
    for name, found in sorted(results.items()):
        if found["run"] != run:
            continue
        stack, optimizer = name.split("/")
        sides = [found["hand"], found["guard"]]
        shown = [f"{int(str(side)) // MB} MB" if side else "not below 640 MB" for side in sides]
        ratio = f"{int(str(sides[1])) / int(str(sides[0])):.2f}" if all(sides) else "-"
        lines.append(f"| {stack} | {optimizer} | {shown[0]} | {shown[1]} | {ratio} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=", ".join(STACKS))
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS, help="only this one; may be repeated")
    parser.add_argument("--step", type=int, default=4, help="megabytes")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no pair after so many")
    parser.add_argument("--go-on", action="store_true", help="go on with the last run")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    saved: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"run": "", "rows": {}}
    results, ends_s = saved["rows"], time.monotonic() + 60 * options.minutes
    now = datetime.datetime.now().isoformat(" ", "minutes")
    run = saved["run"] if options.go_on else f"begun {now}, {machine()['cores']} cores, to {options.step} MB"

    def measure(stack: str, optimizer: str) -> None:
        before = results.get(f"{stack}/{optimizer}", {})
        if time.monotonic() > ends_s or before.get("run") == run:
            return
        hand = smallest(stack, optimizer, "hand", options.step * MB, near=before.get("hand"))
        found = {"hand": hand, "guard": smallest(stack, optimizer, "guard", options.step * MB, near=hand)}
        results[f"{stack}/{optimizer}"] = {**found, "run": run}
        sys.stdout.write(f"{stack} {optimizer}: {found}\n")
        sys.stdout.flush()
        if not options.dry:
            RESULTS.write_text(json.dumps({"run": run, "rows": results}, indent=1) + "\n")
            RESULTS.with_suffix(".md").write_text(table(results, run))

    pairs = [(stack, name) for stack in options.stacks or STACKS for name in options.optimizer or OPTIMIZERS]
    pairs = [pair for pair in pairs if pair[0] != "torch-wide" or pair[1] == "SGD"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Every other pair first: a server of torch answers one try at a time.
        for done in [pool.submit(measure, *pair) for pair in [*pairs[1::2], *pairs[::2]]]:
            done.result()


if __name__ == "__main__":
    main()

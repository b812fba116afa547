"""The smallest limit that trains: the guard against micro-batches written by hand.

Run: python -m benchmarks.guard_memory [STACK ...] [--optimizer NAME] [--step MB] [--dry]    default: all four stacks
Writes results/guard_memory.json and .md unless --dry is given. Stacks that are not named keep their numbers and date;
with --afresh they are dropped. Earlier numbers, or those of --guesses FILE, say where the search begins.
Covers: SGD with momentum, Adam, AdamW and Adafactor on torch, Keras-torch, Keras-TensorFlow and JAX.
Does not cover: time (guard_overhead.py).

For each pair the smallest RLIMIT_DATA above the loaded framework is found by bisection, in steps of a few megabytes;
each try is a fresh process. TensorFlow and JAX abort on some failed allocations; that counts as not trained, on both
sides.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.report import machine  # noqa: E402

STACKS = {"torch": "torch", "keras-torch": "torch", "keras-tensorflow": "tensorflow", "jax": "jax"}
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adafactor")
RESULTS = ROOT / "benchmarks/results/guard_memory.json"
MB = 10**6
MOST = 640 * MB
TARGET = 1.1
_servers: dict[str, subprocess.Popen[str]] = {}


def surroundings(stack: str) -> dict[str, str]:
    """What each try runs in."""
    return {
        **os.environ,
        "KERAS_BACKEND": STACKS[stack],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }


def trains(stack: str, optimizer: str, side: str, nbytes: int) -> bool:
    """Whether one fresh process trains within the limit. torch is loaded once and forked; the others cannot be."""
    if STACKS[stack] == "torch":
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
        server.stdin.write(f"{optimizer} {side} {nbytes}\n")
        server.stdin.flush()
        return server.stdout.readline().strip() == "0"
    command = [sys.executable, str(ROOT / "benchmarks/guard_memory_job.py"), stack, optimizer, side, str(nbytes)]
    done = subprocess.run(command, env=surroundings(stack), capture_output=True, timeout=600, check=False)
    return done.returncode == 0


def smallest(stack: str, optimizer: str, side: str, step: int, near: int | None = None) -> int | None:
    """The smallest limit, to within a step, that trains; None if even the largest does not. `near` is a guess."""
    low, high = 0, MOST // step
    if near is not None and trains(stack, optimizer, side, near):
        high = near // step
        low = max(0, high - max(1, high // 8))
        if trains(stack, optimizer, side, low * step):
            low, high = 0, low
    elif near is not None:
        low = near // step
        high = low + max(2, low // 4)
        if not trains(stack, optimizer, side, high * step):
            low, high = high, MOST // step
    if high * step >= MOST and not trains(stack, optimizer, side, high * step):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if trains(stack, optimizer, side, middle * step):
            high = middle
        else:
            low = middle
    return high * step


def table(results: dict[str, dict[str, object]]) -> str:
    """The results as a page."""
    lines = [
        "# The smallest limit that trains",
        "",
        "`python -m benchmarks.guard_memory`: bytes above the loaded framework (RLIMIT_DATA), by bisection. A network",
        "of 12 MB of parameters, batches of 128 rows in micro-batches of 16. The aim is a ratio of at most 1.1.",
        "",
        "| stack | optimizer | by hand | with the guard | ratio | measured |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in sorted(results.items()):
        stack, optimizer = name.split("/")
        sides = [found["hand"], found["guard"]]
        shown = [f"{int(str(side)) // MB} MB" if side else "not below 640 MB" for side in sides]
        ratio = f"{int(str(sides[1])) / int(str(sides[0])):.2f}" if all(sides) else "-"
        lines.append(f"| {stack} | {optimizer} | {shown[0]} | {shown[1]} | {ratio} | {found['when']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=", ".join(STACKS))
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS, help="only this one; may be repeated")
    parser.add_argument("--step", type=int, default=4, help="megabytes")
    parser.add_argument("--afresh", action="store_true", help="forget the rows of earlier runs")
    parser.add_argument("--guesses", type=Path, default=RESULTS, help="numbers of an earlier run, to begin near them")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    guesses = json.loads(options.guesses.read_text()) if options.guesses.exists() else {}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.afresh else {}
    for stack in options.stacks or STACKS:
        for optimizer in options.optimizer or OPTIMIZERS:
            near = guesses.get(f"{stack}/{optimizer}", {}).get("hand")
            hand = smallest(stack, optimizer, "hand", options.step * MB, near=near)
            found = {"hand": hand, "guard": smallest(stack, optimizer, "guard", options.step * MB, near=hand)}
            when = f"{datetime.date.today()}, {machine()['cores']} cores, to {options.step} MB"
            results[f"{stack}/{optimizer}"] = {**found, "when": when}
            sys.stdout.write(f"{stack} {optimizer}: {found}\n")
            sys.stdout.flush()
            if not options.dry:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                RESULTS.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()

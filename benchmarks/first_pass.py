"""What a fresh process gives from its first row on: the first pass against the second, and the way to the first batch.

Covers: CSV, JSON lines, TFRecord, Parquet, HDF5 and JPEG files, each in fresh processes; time and memory of
`import penstock` and the first batch of a CSV file.
Does not cover: other loaders (one module for each format), kernels alone (kernels.py).
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, START_ROUNDS = 5, 9
FIRST_TO_SECOND, START_S, START_MB = 0.95, 0.6, 110.0


def datasets(quick: bool) -> dict[str, tuple[str, Callable[[], Path]]]:
    """For each format the expression that reads it, and the folder that holds it."""
    from benchmarks import data, jsonl

    chunks = 1 if quick else 4
    many = 4 * chunks  # Parquet is read so fast that a pass over less says little
    shuffled = ".shuffle(seed=1).batch(1024)"
    return {
        "CSV": (f"ps.read_csv(path + '/*.csv', label='label'){shuffled}", lambda: data.csv(2, chunks)),
        "JSON lines": (f"ps.read_json(path + '/*.jsonl', label='label'){shuffled}", lambda: jsonl.jsonl(2, chunks)),
        "TFRecord": (f"ps.read_tfrecords(path + '/*.tfrecord', label='y'){shuffled}", lambda: data.tfrecord(2, chunks)),
        "Parquet": (f"ps.read_parquet(path + '/*.parquet', label='label'){shuffled}", lambda: data.parquet(4, many)),
        "HDF5": (f"ps.read_hdf5(path + '/table.h5', x='x', y='y'){shuffled}", lambda: data.hdf5(4 * chunks)),
        "JPEG": (
            "ps.read_images(path, size=(224, 224)).shuffle(seed=1).batch(64)",
            lambda: data.images(64 if quick else 2000),
        ),
    }


CHILD = """
import json, sys, time
import penstock as ps

def now():
    return [time.perf_counter(), time.process_time()]

path = sys.argv[1]
ds = {expression}
passes = []
for _ in range(2):
    marks = [now()]
    for _, y in ds:
        if len(marks) == 1:
            marks.append(now())
    marks.append(now())
    passes.append([b - a for before, after in zip(marks, marks[1:]) for a, b in zip(before, after)])
compilers = [name for name in ("numba", "llvmlite") if name in sys.modules]
print(json.dumps({{"passes": passes, "compilers": compilers}}))
"""
"""Prints for two passes: seconds and processor seconds to the first batch, and from there to the end."""

START = """
import sys
import penstock as ps
for batch in ps.read_csv(sys.argv[1] + "/*.csv", label="label").batch(256):
    break
print(open("/proc/self/smaps_rollup").read())
"""


def fresh(code: str, path: Path) -> tuple[str, float, float]:
    """What a new process prints, how long it took, and its processor time. As for a user, bytecode is kept."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def passes(quick: bool, turns: int) -> dict[str, list[list[list[float]]]]:
    """What CHILD prints, process by process, the formats by turns."""
    work = {name: (code, make()) for name, (code, make) in datasets(quick).items()}
    found: dict[str, list[list[list[float]]]] = {name: [] for name in work}
    for _, path in work.values():  # so that both passes read from memory, not one from the disk
        for file in path.rglob("*.*"):
            file.read_bytes()
    for _ in range(turns):
        for name, (expression, path) in work.items():
            told = json.loads(fresh(CHILD.format(expression=expression), path)[0].splitlines()[-1])
            if told["compilers"]:
                raise RuntimeError(f"{name} loaded {', '.join(told['compilers'])}.")
            found[name].append(told["passes"])
    return found


def start(quick: bool, turns: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of a process that ends with its first batch, its processor time, and its anonymous megabytes then."""
    from benchmarks import data

    path, seconds, busy, megabytes = data.csv(2, 1 if quick else 4), [], [], []
    fresh(START, path)  # Python keeps the bytecode of what it imports for the first time
    for _ in range(turns):
        text, took, worked = fresh(START, path)
        seconds.append(took)
        busy.append(worked)
        megabytes.append(int(re.findall(r"Anonymous:\s+(\d+) kB", text)[0]) * 1024 / 1e6)
    return seconds, busy, megabytes


def run(options: Any) -> None:
    """Measure, compare, write."""
    from benchmarks import report

    where = report.machine()
    found = passes(options.quick, options.turns(ROUNDS))
    seconds, busy, megabytes = start(options.quick, options.turns(START_ROUNDS))
    rows, verdicts = [], []
    for name, times in found.items():
        ratios = [second[3] / first[3] for first, second in times]
        middle = statistics.median(ratios)
        cells = [statistics.median(one[which][k] for one in times) for which in (0, 1) for k in (1, 3, 2)]
        rows.append([name, *(f"{cell:.2f}" for cell in cells), f"{middle:.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"])
        target = f"{name}: behind its first batch, the first pass runs at >= {FIRST_TO_SECOND} of the second's speed"
        verdicts.append(report.Verdict(target, f"{middle:.2f}", middle >= FIRST_TO_SECOND))
    worked, held = statistics.median(busy), statistics.median(megabytes)
    span = f"{worked:.2f} s of processor time (on the clock: least {min(seconds):.2f} s)"
    verdicts.append(report.Verdict(f"a process to its first CSV batch <= {START_S} s", span, worked <= START_S))
    verdicts.append(report.Verdict(f"its anonymous memory <= {START_MB:.0f} MB", f"{held:.0f} MB", held <= START_MB))
    about = (
        "Two passes in each fresh process, as a user starts one, with nothing loaded beforehand; the formats by turns, "
        "files in the page cache, shuffled and batched. Up to its first batch, the first pass also imports the engine "
        "and starts the workers; speeds are compared from there on, by processor time, because the machine was "
        f"shared with other work (the clock is shown too). From the start of Python to the first batch of a CSV file: "
        f"{span}, {held:.0f} MB of anonymous memory."
    )
    columns = (
        "format", "first pass: CPU s to the first batch", "from there on", "on the clock", "second pass: CPU s to the "
        "first batch", "from there on", "on the clock", "first's speed over second's", "min-max",
    )  # fmt: skip
    told = {"passes": found, "start_s": seconds, "start_cpu_s": busy, "start_mb": megabytes}
    report.Paper("first_pass", "The first pass of a fresh process", about, where, columns, rows, verdicts, told, {},
                 options.quick).write()  # fmt: skip
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.barh([row[0] for row in rows][::-1], [float(row[7]) for row in rows][::-1], color="#1f6feb")
    axis.axvline(FIRST_TO_SECOND, color="#333333", lw=1)
    axis.set(xlabel="speed of the first pass over the second's (median)")
    figure.tight_layout()
    report.save(figure, "first_pass", options.quick)

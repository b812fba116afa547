"""Does memory grow with the data? One epoch of training under a limit of 1 GB, on 1, 4 and (--full) 8 GB.

Covers: CSV, Parquet and pictures, torch included in the limit; the peak is anonymous and shared memory.
Does not cover: speed. The limit is a control group where one can be made, else a limit on the process's data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GB = 1_000_000_000
LIMIT = "1GB"
TOLERANCE = 0.05
TIMEOUT_S = 400.0
PART = {"csv": 12, "parquet": 32}
"""Chunks in a file, so that four files are a little more than 1 GB."""


def paths(kind: str, times: int, most: int, quick: bool) -> tuple[Path, int]:
    """The data of `times` units, and how many files of it. Tables share their files between sizes."""
    from benchmarks import data

    if kind == "images":
        unit = 5_000_000 if quick else GB
        return data.growth_images(times * unit, most * unit), 0
    make = {"csv": data.csv, "parquet": data.parquet}[kind]
    files = 1 if quick else 4
    return make(files * most, 1 if quick else PART[kind]), files * times


def nbytes_of(folder: Path, count: int) -> int:
    """What is really read."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".made")
    return sum(p.stat().st_size for p in (files[:count] if count else files))


def measure(kind: str, times: int, most: int, quick: bool) -> dict[str, Any]:
    """One job in its limit."""
    from benchmarks.harness import ROOT
    from penstock.memory import run_limited

    folder, count = paths(kind, times, most, quick)
    size = nbytes_of(folder, count)
    os.sync()  # pages of fresh data that wait to be written would be charged to whoever comes next
    argv = [sys.executable, "-m", "benchmarks.growth_job", kind, str(folder), str(count)]
    try:
        outcome = run_limited(argv, LIMIT, cwd=str(ROOT), capture=True, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"times": times, "data_gb": size / GB, "error": f"not finished after {TIMEOUT_S:.0f} s"}
    found = {"times": times, "data_gb": size / GB, "peak_mb": outcome.peak_nbytes / 1e6, "how": outcome.how}
    told = [line for line in (outcome.stdout or "").splitlines() if line.startswith("RESULT ")]
    if outcome.killed or outcome.returncode or not told:
        why = "killed for memory" if outcome.killed else f"exit code {outcome.returncode}"
        return {**found, "error": f"{why}\n{(outcome.stderr or '')[-1500:]}"}
    return {**found, **json.loads(told[-1][7:])}


def run(options: Any) -> None:
    """Measure every size of every kind, judge, write."""
    from benchmarks import report

    where = report.machine()
    sizes = (1, 4, 8) if options.full else (1, 4)
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in ("csv", "parquet", "images"):
        found[kind] = []
        for times in sizes:
            found[kind].append(measure(kind, times, sizes[-1], options.quick))
            print(f"  {kind} {times}x: {found[kind][-1]}"[:300], flush=True)
    verdicts = [verdict for kind, runs in found.items() for verdict in judge(kind, runs)]
    rows = [row(kind, one) for kind, runs in found.items() for one in runs]
    columns = ("data", "size GB", "outcome", "peak MB", "rows", "seconds", "rows/s", "limited by")
    about = (
        f"One epoch of a small torch model on shuffled batches, the whole process limited to {LIMIT}. Peak is the most "
        "anonymous and shared memory of the group at any of 50 samples a second; page cache does not count."
    )
    errors = {f"{kind} {one['times']}x": one["error"] for kind, runs in found.items() for one in runs if "error" in one}
    report.Paper(
        "memory_growth", "Memory does not grow with the data", about, where, columns, rows, verdicts, {"runs": found},
        errors, options.quick,
    ).write()  # fmt: skip
    picture(found, options.quick)


def judge(kind: str, runs: list[dict[str, Any]]) -> list[Any]:
    """Survival of the largest, and growth between the smallest and the largest."""
    from benchmarks.report import Verdict

    first, last = runs[0], runs[-1]
    alive = all("error" not in one for one in runs)
    survives = Verdict(
        f"{kind}: training on >= 4 GB under {LIMIT} survives",
        f"{last['data_gb']:.1f} GB, " + (f"peak {last['peak_mb']:.0f} MB" if alive else "failed"),
        alive and last["data_gb"] >= 4,
    )
    if not alive:
        return [survives, Verdict(f"{kind}: peak does not grow (+-{TOLERANCE:.0%})", "failed", False)]
    ratio = last["peak_mb"] / first["peak_mb"]
    grows = Verdict(
        f"{kind}: peak does not grow from 1 to 8 GB (+-{TOLERANCE:.0%})",
        f"{ratio - 1:+.1%} from {first['data_gb']:.1f} to {last['data_gb']:.1f} GB",
        ratio <= 1 + TOLERANCE,
    )
    return [survives, grows]


def row(kind: str, one: dict[str, Any]) -> list[str]:
    """A row of the table."""
    size, peak = f"{one['data_gb']:.2f}", f"{one['peak_mb']:.0f}" if "peak_mb" in one else ""
    if "error" in one:
        return [kind, size, one["error"].splitlines()[0], peak, "", "", "", one.get("how", "")]
    rate = one["rows"] / one["seconds"]
    return [kind, size, "finished", peak, f"{one['rows']:,}", f"{one['seconds']:.1f}", f"{rate:,.0f}", one["how"]]


def picture(found: dict[str, list[dict[str, Any]]], quick: bool) -> None:
    """Peak against size, with the limit."""
    from benchmarks import report

    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 3.5))
    for kind, runs in found.items():
        alive = [one for one in runs if "error" not in one]
        axis.plot([one["data_gb"] for one in alive], [one["peak_mb"] for one in alive], "o-", label=kind)
    axis.axhline(1000, color="#c33", lw=1, ls="--", label="limit")
    axis.set(xlabel="data, GB", ylabel="peak memory, MB", ylim=(0, 1100), title="Memory does not grow with the data")
    axis.legend(fontsize=8)
    report.save(figure, "memory_growth", quick)

"""What does a shuffle that mixes the whole dataset cost beside the one by windows of neighbours that it replaced?

Covers: rows a second of a warm epoch, peak memory, and how long the first batch waits where a row store is written
first, for every reader, before and now in turns, each in a fresh process with a cache of its own.
Does not cover: what it is good for (shuffle_accuracy.py), larger data and cold disks (shuffle_large.py).

    python -m benchmarks.shuffle_speed [--rounds 3] [--kinds csv jsonl] [--folder .bench/shuffle]

A row of the table is kept in the results until it is measured again, so that readers can be measured in several calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from benchmarks.shuffle_data import BATCH, KINDS, OLD_WINDOW, keep, place, rows_in, shuffled, write_data

ROOT = Path(__file__).resolve().parent.parent
CHILD_TIMEOUT_S = 600
EPOCHS = 3
WARM_ENOUGH_S = 5.0
"""Slow readers have fewer warm epochs: no further one begins after so long."""

MODES = ("before", "now")


def child(folder: Path, kind: str, mode: str) -> dict[str, float]:
    """The first epoch, then warm ones; peaks of both."""
    ds = shuffled(folder, kind, mode, 1).batch(BATCH)
    began, rows = time.perf_counter(), 0
    for batch in ds:
        if not rows:
            first_batch_s = time.perf_counter() - began
        rows += rows_in(batch)
    found = {"first_batch_s": first_batch_s, "first_epoch_s": time.perf_counter() - began, "rows": rows}
    found["first_peak"] = peak_nbytes()
    rates, cpu_rates = [], []
    del batch
    forget_peak()
    warm_s = time.perf_counter()
    for number in range(EPOCHS):
        if number and time.perf_counter() - warm_s > WARM_ENOUGH_S:
            break
        began, cpu, count = time.perf_counter(), time.process_time(), 0
        for batch in ds:
            count += rows_in(batch)
        del batch
        rates.append(count / (time.perf_counter() - began))
        cpu_rates.append(count / (time.process_time() - cpu))
    return found | {"rate": max(rates), "cpu_rate": max(cpu_rates), "warm_peak": peak_nbytes()}


def forget_peak() -> None:
    """The next peak begins with what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_nbytes() -> int:
    """The most that was resident. Not getrusage: its peak begins with that of the process which started this one."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def started(folder: Path, kind: str, mode: str) -> dict[str, float]:
    """One contestant in a fresh process, whose stores nobody has written yet."""
    cache = folder / "cache-speed"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_CACHE": str(cache)}
    argv = [sys.executable, "-m", "benchmarks.shuffle_speed", "--child", json.dumps([str(folder), kind, mode])]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=CHILD_TIMEOUT_S
        )
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    if done.returncode:
        raise RuntimeError(f"{kind}, {mode}: {done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(folder: Path, kind: str, rounds: int) -> dict[str, Any]:
    """Before and now in turns: medians, and the median of the ratios within rounds."""
    tried: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for turn in range(rounds):
        for mode in MODES[:: 1 if turn % 2 else -1]:
            tried[mode].append(started(folder, kind, mode))
    entry: dict[str, Any] = {
        mode: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for mode, runs in tried.items()
    }
    pairs = list(zip(tried["before"], tried["now"], strict=True))
    for key in ("rate", "cpu_rate", "first_peak", "warm_peak"):
        ratios = [now[key] / before[key] for before, now in pairs]
        entry[f"{key}_ratio"] = [statistics.median(ratios), min(ratios), max(ratios)]
    return {**entry, "rounds": rounds, "date": machine()["date"]}


def report(found: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# What mixing the whole dataset costs", "",
        f"{found['rows']:,} rows of 20 numbers, batches of {BATCH}, files in the page cache. {place(found['machine'])} "
        "Fresh processes, before and now in turns, nobody else on the machine; medians, and of ratios the least and "
        "the most of all rounds.", "",
        f"`before` is a window of {OLD_WINDOW} of neighbouring units, as shuffles were; `now` is the default "
        "`shuffle()`. Warm epochs: the second to fourth of a process (fewer of readers that take longer than "
        f"{WARM_ENOUGH_S:.0f} s for them), the best of them. The first batch of readers "
        "that go through a row store waits for one pass over the data.", "",
        "| reader | rows/s before | now | now/before | by processor time | peak of the first epoch, now/before | peak "
        "of warm epochs, now/before | first batch after, s, before | now | first epoch, s, before | now | rounds "
        "| measured |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind in (kind for kind in KINDS if kind in found["kinds"]):
        entry = found["kinds"][kind]
        old, new = entry["before"], entry["now"]
        peaks = [
            f"{new[key] / 1e6:.0f}/{old[key] / 1e6:.0f} MB = {entry[f'{key}_ratio'][0]:.2f}"
            for key in ("first_peak", "warm_peak")
        ]
        rate = entry["rate_ratio"]
        lines.append(
            f"| {kind} | {old['rate']:,.0f} | {new['rate']:,.0f} | {rate[0]:.2f} ({rate[1]:.2f}-{rate[2]:.2f}) "
            f"| {entry['cpu_rate_ratio'][0]:.2f} | {peaks[0]} | {peaks[1]} "
            f"| {old['first_batch_s']:.2f} | {new['first_batch_s']:.2f} "
            f"| {old['first_epoch_s']:.1f} | {new['first_epoch_s']:.1f} | {entry['rounds']} | {entry['date']} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        folder, kind, mode = json.loads(asked.child)
        print(json.dumps(child(Path(folder), kind, mode)))
        return
    folder, kept = Path(asked.folder), Path(asked.out) / "shuffle_speed.json"
    write_data(folder, asked.rows)
    for kind in asked.kinds:
        began = time.perf_counter()
        entry = compared(folder, kind, asked.rounds)
        print(f"{kind}, {time.perf_counter() - began:.0f} s:", json.dumps(entry), flush=True)
        found = keep(kept, {"rows": asked.rows}, kind, entry)
        kept.with_suffix(".md").write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()

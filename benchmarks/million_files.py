"""How soon does the first batch of a folder of very many files come? Against a bare walk with os.scandir.

Covers: the first start (nothing kept), the second start (index kept), the walk; each in a fresh process, in turns.
Does not cover: cold caches of the file system. 100,000 names; 1,000,000 with --full.

python -m benchmarks.million_files walk|start FOLDER prints one line of JSON: that is what the fresh processes run.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

FACTOR = 3.0
TIMEOUT_S = 120.0


def walk(folder: str) -> int:
    """Count the files below a folder."""
    count, folders = 0, [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    count += 1
    return count


def time_walk(folder: str) -> dict[str, float]:
    """Seconds of a bare walk."""
    began, used = time.perf_counter(), time.process_time()
    count = walk(folder)
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - used, "files": count}


def time_start(folder: str) -> dict[str, float]:
    """Seconds from the call to the first batch, imports not counted."""
    import cv2  # noqa: F401
    import simplejpeg  # noqa: F401

    import penstock as ps

    began, used = time.perf_counter(), time.process_time()
    ds = ps.read_images(folder, size=(32, 32)).shuffle(seed=1).batch(32)
    listed = time.perf_counter()
    with iter(ds) as batches:
        x, _ = next(batches)
        done, used = time.perf_counter(), time.process_time() - used
    if x.shape != (32, 32, 32, 3):
        raise AssertionError(f"got {x.shape}")
    return {"seconds": done - began, "cpu_s": used, "listed_s": listed - began, "files": len(ds) * 32}


def once(what: str, folder: str, cache: str) -> dict[str, float] | str:
    """One measurement in a fresh process."""
    from benchmarks.harness import ROOT

    argv = [sys.executable, "-m", "benchmarks.million_files", what, folder]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env={**os.environ, "PENSTOCK_CACHE": cache}, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not finished after {TIMEOUT_S:.0f} s"
    if done.returncode:
        return done.stderr[-1500:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rounds(folder: str, turns: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Walk, first start, second start, in turns, each start with its own cache folder."""
    found: dict[str, list[dict[str, float]]] = {"os.scandir walk": [], "first start": [], "second start": []}
    errors: dict[str, str] = {}
    once("walk", folder, "")  # the file system's caches are warm for everybody
    for turn in range(turns):
        cache = tempfile.mkdtemp(prefix="penstock-bench-")
        try:
            for name in found:
                result = once("walk" if "walk" in name else "start", folder, cache)
                if isinstance(result, str):
                    errors[name] = result
                else:
                    found[name].append(result)
                print(f"  round {turn + 1} {name}: {result}", flush=True)
        finally:
            shutil.rmtree(cache, ignore_errors=True)
    return found, errors


def run(options: Any) -> None:
    """Measure, judge, write."""
    from benchmarks import data, report

    where = report.machine()
    count = 1_000_000 if options.full else 5_000 if options.quick else 100_000
    found, errors = rounds(str(data.names(count)), options.turns(5))
    middle = {name: statistics.median(r["seconds"] for r in runs) for name, runs in found.items() if runs}
    rows = [
        [name, f"{seconds:.3f}", f"{min(r['seconds'] for r in found[name]):.3f}-"
         f"{max(r['seconds'] for r in found[name]):.3f}", f"{seconds / middle.get('os.scandir walk', seconds):.2f}x",
         f"{statistics.median(r['cpu_s'] for r in found[name]):.3f}"]
        for name, seconds in middle.items()
    ]  # fmt: skip
    about = (
        f"{count:,} names (hard links to tiny JPEG files) in 100 class folders. Start: from the call of read_images to "
        "the first shuffled batch of 32, in a fresh process, imports not counted; warm caches of the file system."
    )
    title = f"Start: first batch of {count:,} files"
    report.Paper(
        "million_files", title, about, where,
        ("what", "seconds, median", "min-max", "against the walk", "processor seconds"), rows,
        judge(middle, count), {"names": count, "rounds": found}, errors, options.quick,
    ).write()  # fmt: skip
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 2.4))
    axis.barh(list(middle), list(middle.values()), color=["#9aa4b2", "#1f6feb", "#1f6feb"][: len(middle)])
    axis.set(xlabel="seconds (median)", title=title)
    report.save(figure, "million_files", options.quick)


def judge(middle: dict[str, float], count: int) -> list[Any]:
    """The first start against three walks; "at once" is taken as sooner than one walk."""
    from benchmarks.report import Verdict

    walked, verdicts = middle.get("os.scandir walk"), []
    for name, factor in (("first start", FACTOR), ("second start", 1.0)):
        target = f"{name}: first batch of 1,000,000 files within {factor:g}x a bare os.scandir walk"
        if walked is None or name not in middle:
            verdicts.append(Verdict(target, "failed", False))
            continue
        ratio = middle[name] / walked
        shown = f"{ratio:.2f}x ({middle[name]:.2f} s, {count:,} files)"
        verdicts.append(Verdict(target, shown, ratio <= factor))
    return verdicts


if __name__ == "__main__":
    print(json.dumps({"walk": time_walk, "start": time_start}[sys.argv[1]](sys.argv[2])))

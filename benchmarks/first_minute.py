"""How long `penstock train` takes to its first optimizer step, and where the seconds go.

Covers: 1,200 pictures, 300,000 rows of CSV, and the demo's CSV under its 1 GB limit, on TensorFlow, torch and JAX, each
in a fresh process as a user starts it; how much a run under a limit reads from disk. Run a part with `--cases` and
`--backends`; a part replaces its own rows of the results and leaves the others.
Does not cover: how fast the epochs are (train_accuracy.py, migrations.py).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import report

BACKENDS = ("tensorflow", "torch", "jax")
TARGET_S = {"pictures": 15.0, "rows": 15.0, "demo": 25.0}
ROUNDS = 3
HOME = Path(__file__).resolve().parents[1]
NAME = "first_minute"
STAGES = ("command", "preparing", "forecast", "waiting for the framework", "building", "first step")


def pictures(quick: bool) -> Path:
    """1,200 JPEG files in two class folders."""
    from penstock.demo.data import make_images

    count = 64 if quick else 1_200
    folder = HOME / ".bench" / f"first-minute-pictures-{count}"
    return _made(folder, lambda fresh: make_images(fresh, count, lambda n: None))


def rows(quick: bool) -> Path:
    """300,000 rows of 20 numbers and a label."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv

    count = 3_000 if quick else 300_000

    def write(fresh: Path) -> None:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((count, 20)).astype(np.float32)
        label = (x[:, :5].sum(1) > 0).astype(np.int8)
        fresh.mkdir()
        table = pa.table({**{f"f{i}": x[:, i] for i in range(20)}, "label": label})
        pyarrow.csv.write_csv(table, fresh / "rows.csv")

    return _made(HOME / ".bench" / f"first-minute-rows-{count}", write) / "rows.csv"


def demo(quick: bool) -> Path:
    """The CSV file of `penstock demo`, 1.5 GB."""
    from penstock.demo.data import make_table

    nbytes = 20_000_000 if quick else 1_500_000_000

    def write(fresh: Path) -> None:
        fresh.mkdir()
        make_table(fresh / "table.csv", nbytes, lambda n: None)

    return _made(HOME / ".bench" / f"first-minute-demo-{nbytes}", write) / "table.csv"


def _made(folder: Path, write: Any) -> Path:
    if not folder.exists():
        fresh = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        write(fresh)
        fresh.rename(folder)
    return folder


CASES = {
    "pictures": (pictures, ["--image-size", "96"]),
    "rows": (rows, []),
    "demo": (demo, ["--memory", "1GB", "--batch", "4096", "--val", "0.05"]),
}
"""The data, and the options beside the backend."""


def first_step(path: Path, backend: str, options: list[str]) -> dict[str, Any]:
    """Start the command, follow its events to the first step, stop it."""
    run = HOME / ".bench" / "first-minute-run"
    shutil.rmtree(run, ignore_errors=True)
    start = [sys.executable, "-c", "from penstock.cli.main import main; main()", "train", str(path), "--json"]
    argv = [*start, "--backend", backend, "--out", str(run), *options]
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began, read = time.time(), _disk_reads()
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    at: dict[str, float] = {}
    told: dict[str, dict[str, Any]] = {}
    try:
        for line in child.stdout:
            event = json.loads(line)
            at.setdefault(event["kind"], event["t"] - began)
            told.setdefault(event["kind"], event)
            if event["kind"] == "train.progress":
                break
    finally:
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
    if "train.progress" not in at:
        raise RuntimeError(f"{backend} on {path.name}: no step was made. {errors[-2000:]}")
    rate = told["train.prepared"]["train"] / max(told["train.prepared"]["seconds"], 1e-3)
    forecast = at["run.forecast"] - at["train.data"] if told["train.data"]["will_forecast"] else 0.0
    spent = {
        "command": at["run.start"], "preparing": told["train.prepared"]["seconds"], "forecast": forecast,
        "waiting for the framework": told["train.loaded"]["waited_s"],
        "building": at["train.begin"] - at["train.loaded"],
        "first step": at["train.progress"] - at["train.begin"],
    }  # fmt: skip
    shutil.rmtree(run, ignore_errors=True)
    return {
        "seconds": at["train.progress"], "spent": spent, "rows_per_s": rate, "read_mb": (_disk_reads() - read) / 1e6,
        "loading_s": told["train.loaded"]["seconds"],
    }  # fmt: skip


def _disk_reads() -> int:
    """Bytes that the machine has read from its disks; other programs' too."""
    lines = (line.split() for line in Path("/proc/diskstats").read_text().splitlines())
    return sum(512 * int(part[5]) for part in lines if not part[2].startswith(("loop", "ram", "dm-", "zram")))


def measure(cases: list[str], backends: list[str], quick: bool, rounds: int) -> list[dict[str, Any]]:
    """All rounds, the backends by turns; the data and the frameworks' files are read once before."""
    found = {(case, backend): [] for case in cases for backend in backends}  # type: ignore[var-annotated]
    data = {case: CASES[case][0](quick) for case in cases}
    for path in data.values():
        for file in [path] if path.is_file() else path.rglob("*.jpg"):
            with open(file, "rb") as stream:
                while stream.read(1 << 22):
                    pass
    for backend in backends:
        env = {**os.environ, "KERAS_BACKEND": backend}
        subprocess.run([sys.executable, "-c", "import keras"], env=env, check=True, capture_output=True)
    for _ in range(rounds):
        for case in cases:
            for backend in backends:
                one = first_step(data[case], backend, CASES[case][1])
                found[case, backend].append(one)
                print(f"  {case} {backend}: {one['seconds']:.1f} s {_told(one['spent'])}", flush=True)
    return [{"case": case, "backend": backend, "rounds": rounds} for (case, backend), rounds in found.items()]


def _told(spent: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())


def write(found: list[dict[str, Any]], quick: bool) -> None:
    """The page and its numbers; parts that were not measured now stay as they were."""
    where = report.machine()
    path = report.folder_for(quick) / f"{NAME}.json"
    before = json.loads(path.read_text())["parts"] if path.exists() else []
    fresh = {(part["case"], part["backend"]): {**part, "date": where["date"]} for part in found}
    kept = {(part["case"], part["backend"]): part for part in before} | fresh
    parts = [kept[case, backend] for case in CASES for backend in BACKENDS if (case, backend) in kept]
    table, verdicts = [], []
    for part in parts:
        turns = part["rounds"]
        seconds = [turn["seconds"] for turn in turns]
        middle = statistics.median(seconds)
        stages = [statistics.median(turn["spent"][name] for turn in turns) for name in STAGES]
        rate, read = (statistics.median(turn[key] for turn in turns) for key in ("rows_per_s", "read_mb"))
        table.append([
            part["case"], part["backend"], f"{middle:.1f}", f"{min(seconds):.1f}-{max(seconds):.1f}",
            *(f"{stage:.1f}" for stage in stages), "" if part["case"] == "pictures" else f"{rate:,.0f}", f"{read:,.0f}",
            part["date"],
        ])  # fmt: skip
        target = (
            f"`penstock train`, {part['case']}, {part['backend']}: first step within {TARGET_S[part['case']]:.0f} s"
        )
        verdicts.append(report.Verdict(target, f"{middle:.1f} s", middle <= TARGET_S[part["case"]]))
    about = (
        "Seconds from the start of the command to the end of its first optimizer step, in fresh processes, medians "
        "over rounds, backends by turns; data and frameworks have been read once before (warm disk). `pictures`: "
        "1,200 JPEG files; `rows`: 300,000 rows of 20 numbers in a 66 MB CSV, both without a limit; `demo`: the "
        "demo's 1.5 GB CSV, `--memory 1GB`. `command` is the parent: its own start, a look at the data, the start "
        "of the worker. `disk` is what the machine read from its disks during the run, page cache that the limit "
        "pushed out included."
    )
    columns = ("data", "backend", "to the first step, s", "min-max", *STAGES, "prepared rows/s", "disk MB", "measured")
    paper = report.Paper(NAME, "From the command to the first step", about, where, columns, table, verdicts,
                         {"parts": parts}, {}, quick)  # fmt: skip
    paper.write()
    _draw(parts, quick)


def _draw(parts: list[dict[str, Any]], quick: bool) -> None:
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(8, 0.8 + 0.32 * len(parts)))
    names = [f"{part['case']}, {part['backend']}" for part in parts]
    left = [0.0] * len(parts)
    for stage in STAGES:
        width = [statistics.median(turn["spent"][stage] for turn in part["rounds"]) for part in parts]
        axis.barh(names, width, left=left, label=stage)
        left = [a + b for a, b in zip(left, width, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel("seconds to the first step")
    axis.legend(fontsize=7)
    report.save(figure, NAME, quick)


def run(options: Any) -> None:
    """All parts."""
    write(measure(list(CASES), list(BACKENDS), options.quick, options.turns(ROUNDS)), options.quick)


def main() -> None:
    """Some parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_minute")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true")
    told = parser.parse_args()
    write(measure(told.cases.split(","), told.backends.split(","), told.quick, told.rounds), told.quick)


if __name__ == "__main__":
    main()

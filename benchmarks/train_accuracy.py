"""`penstock train` under a limit against the same Keras model with everything in memory.

Covers: Fashion-MNIST as PNG files (Debian package dataset-fashion-mnist), a CSV of 40 columns, texts as JSON lines;
accuracy on held-out rows over several seeds; whether the in-memory job survives the limit.
Does not cover: speed.

`python -m benchmarks.run train_accuracy` measures all three; `python -m benchmarks.train_accuracy --cases text` only
some, and leaves what was found on the others as it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.harness import ROOT, Options
from benchmarks.train_accuracy_job import BATCH, EPOCHS
from penstock.core.sizes import parse_size, size
from penstock.memory.jail import run_limited
from penstock.watch.run_folder import read_events

FASHION = Path("/usr/share/datasets/fashion-mnist")
ENV = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
LIMIT, SEEDS = "600MB", 3
SAME = 0.005
"""Accuracies nearer than this, or than twice the spread over seeds, are the same."""


@dataclass(frozen=True)
class Sizes:
    """How much data: enough that the in-memory job does not fit, or a little, to see that everything runs."""

    images: int = 30_000
    table_rows: int = 600_000
    text_rows: int = 200_000
    test_rows: int = 10_000


QUICK = Sizes(500, 3000, 1500, 500)


@dataclass
class Case:
    """One dataset and what was found on it."""

    kind: str
    what: str
    train: str
    test: str
    killed: bool = False
    killed_at: int = 0
    memory: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    date: str = ""

    @property
    def apart(self) -> float:
        """How far our mean accuracy is from the other's."""
        return statistics.mean(self.ours) - statistics.mean(self.memory)

    @property
    def same(self) -> bool:
        """Whether the two accuracies agree within noise."""
        spread = [statistics.stdev(found) if len(found) > 1 else 0.0 for found in (self.ours, self.memory)]
        return abs(self.apart) <= max(SAME, 2 * max(spread))


def idx(name: str, header: int) -> np.ndarray[Any, Any]:
    """The values of an idx file."""
    with gzip.open(FASHION / name) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


def make_images(folder: Path, sizes: Sizes) -> Case:
    """Fashion-MNIST as PNG files in class folders."""
    import cv2

    for part, source, rows in (("train", "train", sizes.images), ("test", "t10k", sizes.test_rows)):
        if (folder / part).exists():
            continue
        images = idx(f"{source}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        labels = idx(f"{source}-labels-idx1-ubyte.gz", 8)
        for label in range(10):
            (folder / part / str(label)).mkdir(parents=True)
        for i, (image, label) in enumerate(zip(images[:rows], labels[:rows], strict=True)):
            cv2.imwrite(str(folder / part / str(label) / f"{i:05d}.png"), image)
    return Case("images", f"Fashion-MNIST, {sizes.images:,} PNG files", str(folder / "train"), str(folder / "test"))


def make_table(folder: Path, sizes: Sizes) -> Case:
    """40 numbers and a label that some of them decide, not linearly."""
    import pyarrow as pa
    import pyarrow.csv

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, rows in (("train", sizes.table_rows), ("test", sizes.test_rows)):
        x = rng.standard_normal((rows, 40)).astype(np.float32).round(4)
        score = x[:, 0] * x[:, 1] + x[:, 2] - 0.5 * x[:, 3] ** 2 + 0.5 + rng.normal(0, 0.7, rows)
        table = pa.table({**{f"f{i}": x[:, i] for i in range(40)}, "label": (score > 0).astype(np.int8)})
        if not (folder / f"{part}.csv").exists():
            pyarrow.csv.write_csv(table, folder / f"{part}.csv")
    text = f"CSV of 40 columns, {sizes.table_rows:,} rows"
    return Case("table", text, str(folder / "train.csv"), str(folder / "test.csv"))


def make_text(folder: Path, sizes: Sizes) -> Case:
    """Texts whose words lean to one of four subjects."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    words = np.array([f"word{i}" for i in range(8000)])
    frequency = 1 / np.arange(10, 8010)
    subjects = [np.where(rng.random(8000) < 0.03, 3.0, 1.0) * frequency for _ in range(4)]
    for part, rows in (("train", sizes.text_rows), ("test", sizes.test_rows)):
        if (folder / f"{part}.jsonl").exists():
            continue
        labels = rng.integers(0, 4, rows)
        picked = [rng.choice(8000, (rows, 30), p=s / s.sum()).astype(np.int16) for s in subjects]
        with open(folder / f"{part}.jsonl", "w", encoding="utf-8") as file:
            for row, label in enumerate(labels):
                text = " ".join(words[picked[label][row]])
                file.write(json.dumps({"text": text, "label": int(label)}) + "\n")
    text = f"JSON lines, {sizes.text_rows:,} texts of 30 words"
    return Case("text", text, str(folder / "train.jsonl"), str(folder / "test.jsonl"))


MAKERS: dict[str, Callable[[Path, Sizes], Case]] = {"images": make_images, "table": make_table, "text": make_text}


def in_memory(case: Case, seeds: int, limit: int | None) -> None:
    """The in-memory job: under the limit, to see whether it is killed; without one, for its accuracies."""
    places = [case.kind, case.train, case.test, str(seeds)]
    argv = [sys.executable, "-m", "benchmarks.train_accuracy_job", *places]
    if limit is not None:
        outcome = run_limited(argv, limit, env=ENV, capture=True)
        case.killed, case.killed_at = outcome.killed, outcome.peak_nbytes
        return
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=True)
    case.memory = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def with_penstock(case: Case, seed: int, limit: int, folder: Path) -> None:
    """Accuracy of predictions after `penstock train` under the limit, and the run's peak."""
    from penstock.train.keras.predict import predict  # after KERAS_BACKEND is set

    run = folder / "runs" / f"{case.kind}-{seed}-{os.getpid()}"
    words = [case.train, "--memory", str(limit), "--batch", str(BATCH[case.kind]), "--val", "0", "--out", str(run)]
    words += ["--epochs", str(EPOCHS[case.kind]), "--seed", str(seed), "--no-forecast"]
    subprocess.run([sys.executable, "-m", "penstock", "train", *words], env=ENV, check=True, stdout=subprocess.DEVNULL)
    out = run / "predictions.parquet"
    predict(run / "model.keras", case.test, out, batch=1024)
    case.peaks.append(max(int(e["used_nbytes"]) for e in read_events(run) if e["kind"] == "memory.sample"))
    case.ours.append(accuracy(case, out))


def accuracy(case: Case, predictions: Path) -> float:
    """The share of test rows that were predicted right."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    table = pq.read_table(predictions)
    found = table["prediction"].to_pylist()
    if case.kind == "images":
        truth = [Path(path).parent.name for path in table["path"].to_pylist()]
    elif case.kind == "table":
        truth = [str(n) for n in pyarrow.csv.read_csv(case.test)["label"].to_pylist()]
    else:
        with open(case.test, encoding="utf-8") as file:
            truth = [str(json.loads(line)["label"]) for line in file]
    return float(np.mean([a == b for a, b in zip(found, truth, strict=True)]))


def measure(case: Case, limit: int, seeds: int, folder: Path) -> None:
    """Everything about one dataset."""
    in_memory(case, 1, limit)
    print(f"  {case.what}: in memory under the limit", "killed" if case.killed else "survived", flush=True)
    in_memory(case, seeds, None)
    print("    in memory:", case.memory, flush=True)
    for seed in range(seeds):
        with_penstock(case, seed, limit, folder)
        print(f"    penstock, seed {seed}: {case.ours[-1]:.4f}, peak {size(case.peaks[-1])}", flush=True)


def known(quick: bool) -> dict[str, Case]:
    """What earlier runs found, by kind."""
    path = report.folder_for(quick) / "train_accuracy.json"
    stored = json.loads(path.read_text())["cases"] if path.exists() else {}
    return {kind: Case(**values) for kind, values in stored.items()}


def write(cases: Sequence[Case], limit: int, where: dict[str, Any], *, quick: bool) -> None:
    """The page, its numbers and its picture."""
    about = (
        f"Limit {size(limit)} (memory cgroup, framework included), TensorFlow, {len(cases[0].ours)} seeds, accuracy on "
        "held-out rows (mean ± deviation). Each in-memory job ran under the limit first, to see whether it is killed, "
        f"and then without one, for its accuracies. Same: nearer than {SAME}, or than twice the spread over seeds."
    )
    columns = ("data", "in memory, under the limit", "in memory, no limit", "penstock train, under the limit", "peak",
               "measured")  # fmt: skip
    rows = [
        [case.what, f"killed by the kernel at {size(case.killed_at)}" if case.killed else "survived",
         _shown(case.memory), _shown(case.ours), size(max(case.peaks)), case.date]
        for case in cases
    ]  # fmt: skip
    verdicts = []
    for case in cases:
        target = f"{case.what}: the accuracy of the in-memory job, under a limit that kills it"
        found = f"{case.apart:+.4f}, in-memory job {'killed' if case.killed else 'survived'}"
        verdicts.append(report.Verdict(target, found, case.same and case.killed and max(case.peaks) <= limit))
    title = "Accuracy of `penstock train` under a limit, and of the same model with everything in memory"
    data = {"limit_nbytes": limit, "cases": {case.kind: asdict(case) for case in cases}}
    report.Paper("train_accuracy", title, about, where, columns, rows, verdicts, data, {}, quick).write()
    _picture(cases, quick)


def _picture(cases: Sequence[Case], quick: bool) -> None:
    figure, axes = report.plotter().subplots(1, len(cases), figsize=(10, 2.6), squeeze=False)
    for case, axis in zip(cases, axes[0], strict=True):
        for place, (found, colour) in enumerate(((case.memory, "#9aa4b2"), (case.ours, "#1f6feb"))):
            axis.scatter([place] * len(found), found, color=colour)
        axis.set_xticks([0, 1], ["in memory", "penstock"])
        axis.set_xlim(-0.6, 1.6)
        axis.set_title(case.what, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("accuracy, one dot a seed")
    report.save(figure, "train_accuracy", quick)


def _shown(found: list[float]) -> str:
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.4f} ± {spread:.4f}"


def run(options: Options, kinds: Sequence[str] = tuple(MAKERS), limit: str = LIMIT) -> None:
    """Measure some datasets, and write the page of all that were ever measured."""
    where, nbytes = report.machine(), parse_size(limit)
    folder = ROOT / ".bench" / ("train-quick" if options.quick else "train")
    os.environ.update(ENV)
    found = known(options.quick)
    for kind in kinds:
        case = MAKERS[kind](folder / kind, QUICK if options.quick else Sizes())
        measure(case, nbytes, options.turns(SEEDS), folder)
        case.train, case.test, case.date = "", "", str(where["date"])
        found[kind] = case
        write([found[name] for name in MAKERS if name in found], nbytes, where, quick=options.quick)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_accuracy")
    parser.add_argument("--cases", nargs="+", choices=tuple(MAKERS), default=list(MAKERS))
    parser.add_argument("--limit", default=LIMIT)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true", help="tiny: only to see that it works")
    told = parser.parse_args()
    run(Options(quick=told.quick, rounds=told.seeds), told.cases, told.limit)


if __name__ == "__main__":
    main()

"""Does a model learn as much from batches of a sorted table as from rows in memory?

Covers: every reader of tables on rows sorted by class: accuracy of a small network after one epoch (3 seeds) beside the
same network on the same rows in memory, coverage and classes of the batches that really came, before and now.
Does not cover: speed and memory (shuffle_speed.py), larger data (shuffle_large.py), peers (shuffle_picture.py).

    python -m benchmarks.shuffle_accuracy [--rows 1000000] [--seeds 3] [--kinds csv jsonl] [--folder .bench/shuffle]

A row of the table is kept in the results until it is measured again, so that readers can be measured in several calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shuffle_data import (
    BATCH,
    CLASSES,
    FEATURES,
    KINDS,
    TAR_PART,
    RowNumbers,
    keep,
    numbers_of,
    place,
    rows_of,
    shuffled,
    write_data,
)
from penstock.engine.mixing import STRETCHES, uniform_stretches

ROOT = Path(__file__).resolve().parent.parent
HIDDEN = 32
FRESH_ROWS = 50_000
CHILD_TIMEOUT_S = 600


class Network:
    """Two layers, Adam, in NumPy: small enough that no framework is needed to compare orders."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        sizes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        self.weights = [random.normal(size=s) / np.sqrt(s[0]) if len(s) > 1 else np.zeros(s) for s in sizes]
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]
        self.steps = 0

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(x @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores = np.exp(scores - scores.max(1, keepdims=True))
        error = scores / scores.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ w2.T) * (hidden > 0)
        self.steps += 1
        for i, gradient in enumerate((x.T @ back, back.sum(0), hidden.T @ error, error.sum(0))):
            self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
            self.second[i] = 0.999 * self.second[i] + 0.001 * gradient**2
            scale = np.sqrt(self.second[i] / (1 - 0.999**self.steps)) + 1e-8
            self.weights[i] = self.weights[i] - 3e-3 * self.first[i] / (1 - 0.9**self.steps) / scale

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        w1, b1, w2, b2 = self.weights
        return float(((np.maximum(x @ w1 + b1, 0) @ w2 + b2).argmax(1) == y).mean())


def train(batches: Iterable[tuple[np.ndarray, np.ndarray]], seed: int, numbers: RowNumbers | None) -> dict[str, Any]:
    """One epoch: accuracy on fresh rows, and what the whole batches showed."""
    network = Network(seed)
    classes: list[int] = []
    stretches: list[int] = []
    for x, y in batches:
        network.step(x.astype(np.float64), y)
        if len(y) == BATCH:
            classes.append(len(np.unique(y)))
            if numbers is not None:
                stretches.append(len(np.unique(numbers.of(x) * STRETCHES // numbers.total)))
    found = {"accuracy": network.accuracy(*rows_of(FRESH_ROWS, 99, False)), "classes": float(np.mean(classes))}
    if numbers is None:
        return found | {"least": min(classes)}
    tenths = [float(part.mean()) for part in np.array_split(stretches, 10)]
    uniform = uniform_stretches(numbers.total)
    shown = {"coverage": float(np.mean(stretches)), "worst_tenth": min(tenths), "last_tenth": tenths[-1]}
    return found | {"least": min(classes)} | {name: value / uniform for name, value in shown.items()}


def in_memory(count: int, every: int, seed: int) -> dict[str, Any]:
    """The rows, all of them in memory, in an exactly random order."""
    x, y = (values[::every] for values in rows_of(count, 0, True))
    order = np.random.default_rng(seed).permutation(len(y))
    parts = (order[at : at + BATCH] for at in range(0, len(y), BATCH))
    return train(((x[part], y[part]) for part in parts), seed, None)


def child(folder: Path, count: int, kind: str, mode: str, seeds: int) -> list[dict[str, Any]]:
    """One reader, in this process: an epoch for each seed."""
    numbers = RowNumbers(count, part_of(kind))
    found = []
    for seed in range(seeds):
        ds = shuffled(folder, kind, mode, seed)
        told = ds.shuffle_quality().coverage
        found.append(train(map(numbers_of, ds.batch(BATCH)), seed, numbers) | {"told": told})
    return found


def part_of(kind: str) -> int:
    """One row in so many is in this file."""
    return TAR_PART if kind == "tar.gz" else 1


def measured(folder: Path, count: int, kind: str, mode: str, seeds: int) -> dict[str, float]:
    """One reader in a fresh process: means over seeds, and the least of what must not be less."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_CACHE": str(folder / "cache")}
    argv = [sys.executable, "-m", "benchmarks.shuffle_accuracy", "--child"]
    argv.append(json.dumps([str(folder), count, kind, mode, seeds]))
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=CHILD_TIMEOUT_S
    )
    if done.returncode:
        raise RuntimeError(f"{kind}, {mode}: {done.stderr[-3000:]}")
    return summary(json.loads(done.stdout.splitlines()[-1]))


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Means; of the tenths and the classes the least of all seeds."""
    least = {key: min(run[key] for run in runs) for key in ("least", "worst_tenth", "last_tenth") if key in runs[0]}
    return {key: float(np.mean([run[key] for run in runs])) for key in runs[0]} | least


def report(found: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Learning from a sorted table", "",
        f"{found['rows']:,} rows of {FEATURES} numbers, sorted by class ({CLASSES}); one epoch, batch {BATCH}, the "
        f"same small network; accuracy on {FRESH_ROWS:,} fresh rows.", "",
        f"{place(found['machine'])} Nothing here depends on how busy the machine was.", "",
        "Coverage is measured on the batches that came: the distinct hundredths of the dataset in a batch, divided by "
        "what a uniform shuffle shows; the mean of the epoch, its worst tenth and its last one (least of the seeds).",
        "", f"`now`: the default `shuffle()`, {found['seeds']} seeds. `before`: windows of neighbouring units of three "
        "blocks, as penstock had them, with one seed. `told`: the coverage that `shuffle_quality()` foretells.", "",
        "| reader | accuracy in memory | before | **now** | now, less than in memory | classes in a batch before "
        "(mean, least) | now | coverage before | now | worst tenth | last tenth | told |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind in (kind for kind in KINDS if kind in found["kinds"]):
        entry = found["kinds"][kind]
        old, new, memory = entry["before"], entry["now"], entry["memory"]
        lines.append(
            f"| {kind} | {memory['accuracy']:.3f} | {old['accuracy']:.3f} | **{new['accuracy']:.3f}** "
            f"| {100 * (memory['accuracy'] - new['accuracy']):.2f} points "
            f"| {old['classes']:.1f}, {old['least']:.0f} | {new['classes']:.1f}, {new['least']:.0f} "
            f"| {old['coverage']:.2f} | {new['coverage']:.3f} | {new['worst_tenth']:.3f} | {new['last_tenth']:.3f} "
            f"| {new['told']:.3f} |"
        )
    lines += ["", f"The tar holds one row in {TAR_PART}, and is compared with the same rows in memory.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        folder, count, kind, mode, seeds = json.loads(asked.child)
        print(json.dumps(child(Path(folder), count, kind, mode, seeds)))
        return
    folder, kept = Path(asked.folder), Path(asked.out) / "shuffle_accuracy.json"
    write_data(folder, asked.rows)
    memory: dict[int, dict[str, float]] = {}
    for kind in asked.kinds:
        began, every = time.perf_counter(), part_of(kind)
        if every not in memory:
            memory[every] = summary([in_memory(asked.rows, every, seed) for seed in range(asked.seeds)])
        now = measured(folder, asked.rows, kind, "now", asked.seeds)
        before = measured(folder, asked.rows, kind, "before", 1)
        entry = {"memory": memory[every], "before": before, "now": now}
        print(f"{kind}, {time.perf_counter() - began:.0f} s:", json.dumps(entry), flush=True)
        found = keep(kept, {"rows": asked.rows, "seeds": asked.seeds}, kind, entry)
        kept.with_suffix(".md").write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Do batches of a sorted table look like the whole, does a model learn from them, and what does it cost?

Covers: every reader of tables on rows sorted by class: classes in a batch, accuracy of a small network after one epoch
(3 seeds) beside the same network on rows in memory; rows a second and peak memory beside the shuffle by windows of
neighbouring units that penstock had before; where the rows of a batch come from, beside peers.
Does not cover: data that is larger than memory (memory_growth.py), cold disks.

    python -m benchmarks.shuffle_quality [--rows 200000] [--rounds 3] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shuffle_data import CLASSES, FEATURES, read, rows_of, write_data

ROOT = Path(__file__).resolve().parent.parent
BATCH, HIDDEN = 256, 32
KINDS = (
    "csv",
    "csv.gz",
    "jsonl",
    "parquet 8 groups",
    "parquet 1 group",
    "parquet 1000 groups",
    "hdf5",
    "tfrecord",
    "sql",
    "zarr",
    "text",
)
OLD_WINDOW = "22MB"


def shuffled(folder: Path, kind: str, mode: str, seed: int) -> Any:
    """The default shuffle; or, as before, of neighbouring units in windows of three blocks."""
    from penstock.core.wrapped_source import WrappedUnits
    from penstock.dataset import Dataset
    from penstock.plan.steps import Node, Read

    ds = read(folder, kind)
    if mode == "now":
        return ds.shuffle(seed=seed)
    if mode == "exact":
        return ds.shuffle(seed=seed, exact=True)

    def without_pieces(node: Node) -> Node:
        if isinstance(node.step, Read):
            return Node(Read(WrappedUnits(node.step.source)))  # type: ignore[arg-type]
        return Node(node.step, tuple(without_pieces(child) for child in node.inputs))

    return Dataset(without_pieces(ds.node)).shuffle(seed=seed, window=OLD_WINDOW)


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


def train(batches: Any, seed: int) -> dict[str, Any]:
    """One epoch: accuracy on fresh rows, and the classes that batches showed."""
    network, classes = Network(seed), []
    for batch in batches:
        x, y = batch if isinstance(batch, tuple) else numbers_of(batch["text"])
        y = np.asarray(y).reshape(-1).astype(np.int64)
        network.step(np.asarray(x, np.float64).reshape(len(y), -1), y)
        classes.append(len(np.unique(y)))
    fresh = rows_of(20_000, 99, False)
    return {"accuracy": network.accuracy(*fresh), "classes": classes[:-1] or classes}


def numbers_of(lines: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and classes of lines of text."""
    values = np.array([line.split() for line in lines], np.float32)
    return values[:, 1:], values[:, 0]


def in_memory(count: int, seed: int) -> dict[str, Any]:
    """The same rows, all of them in memory, in an exactly random order."""
    x, y = rows_of(count, 0, True)
    order = np.random.default_rng(seed).permutation(count)
    return train(((x[order[i : i + BATCH]], y[order[i : i + BATCH]]) for i in range(0, count, BATCH)), seed)


def child(folder: Path, kind: str, mode: str, seed: int, learn: bool) -> dict[str, Any]:
    """One contestant in this process: an epoch that learns, then two that only read."""
    ds = shuffled(folder, kind, mode, seed).batch(BATCH)
    found: dict[str, Any] = {"coverage": ds.shuffle_quality().coverage}
    began = time.perf_counter()
    if learn:
        found |= train(ds, seed)
    else:
        sum(map(rows_in, ds))
    found["first_s"] = time.perf_counter() - began
    rates, cpu_rates = [], []
    for _ in range(2):
        began, cpu = time.perf_counter(), time.process_time()
        rows = sum(map(rows_in, ds))
        rates.append(rows / (time.perf_counter() - began))
        cpu_rates.append(rows / (time.process_time() - cpu))
    return found | {"rate": max(rates), "cpu_rate": max(cpu_rates), "peak_mb": peak_mb()}


def rows_in(batch: Any) -> int:
    """Rows of a batch of pairs, or of text."""
    return len(batch[1]) if isinstance(batch, tuple) else len(batch["text"])


def peak_mb() -> float:
    """The most that was resident. Not getrusage: its peak begins with that of the process which started this one."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmHWM"))


def started(folder: Path, kind: str, mode: str, seed: int, learn: bool) -> dict[str, Any]:
    """The same in a fresh process."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks.shuffle_quality",
        "--child",
        json.dumps([str(folder), kind, mode, seed, learn]),
    ]
    cache = {**os.environ, "PENSTOCK_CACHE": str(folder / f"cache-{mode}")}
    done = subprocess.run(argv, cwd=ROOT, env=cache, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind}, {mode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compared(folder: Path, rounds: int, before_rounds: int) -> dict[str, dict[str, Any]]:
    """Every kind, before and now in turns."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        tried: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
        for seed in range(rounds):
            for mode in ("before", "now") if seed % 2 else ("now", "before"):
                if mode == "before" and seed >= before_rounds:
                    continue
                tried[mode].append(started(folder, kind, mode, seed, True))
        entry: dict[str, Any] = {mode: _summary(runs) for mode, runs in tried.items()}
        pairs = zip(tried["now"], tried["before"], strict=False)
        entry["rate_ratio"] = statistics.median(now["rate"] / before["rate"] for now, before in pairs)
        entry["cpu_ratio"] = max(r["cpu_rate"] for r in tried["now"]) / max(r["cpu_rate"] for r in tried["before"])
        entry["peak_ratio"] = entry["now"]["peak_mb"] / entry["before"]["peak_mb"]
        found[kind] = entry
        print(kind, json.dumps(entry), flush=True)
    return found


def _summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    classes = [count for run in runs for count in run.get("classes", [])]
    means = {key: float(np.mean([run[key] for run in runs])) for key in ("coverage", "accuracy", "first_s")}
    means |= {"rate": statistics.median(run["rate"] for run in runs), "peak_mb": max(run["peak_mb"] for run in runs)}
    return means | {"classes": float(np.mean(classes)), "least": min(classes)}


def peers(count: int) -> dict[str, list[int]]:
    """The rows of the batch in the middle of an epoch, where a peer's buffer stands over the same sorted rows."""
    middle = count // 2 // BATCH
    found: dict[str, list[int]] = {}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf

        batches = tf.data.Dataset.range(count).shuffle(10_000, seed=1).batch(BATCH).skip(middle)
        found["tf.data shuffle(10_000)"] = next(iter(batches)).numpy().tolist()
    except ImportError:
        print("tf.data is left out: tensorflow is not installed")
    try:
        import datasets

        def numbers() -> Any:
            return ({"row": i} for i in range(count))

        stream = datasets.IterableDataset.from_generator(numbers).shuffle(seed=1, buffer_size=1000)
        found["HF datasets, streaming, shuffle()"] = [s["row"] for s in stream.skip(middle * BATCH).take(BATCH)]
    except ImportError:
        print("HF datasets is left out: it is not installed")
    try:
        import grain

        window = grain.MapDataset.range(count).to_iter_dataset()
        mixed = grain.experimental.WindowShuffleIterDataset(window, window_size=10_000, seed=1)
        found["Grain WindowShuffle(10_000)"] = [
            int(row) for i, row in zip(range((middle + 1) * BATCH), mixed, strict=False)
        ][-BATCH:]
    except (ImportError, AttributeError):
        print("Grain is left out: it is not installed, or has no shuffle of streams")
    try:
        import webdataset

        stream = webdataset.DataPipeline(lambda: iter(range(count)), webdataset.shuffle(1000, initial=1000))
        found["WebDataset shuffle(1000)"] = [row for i, row in zip(range((middle + 1) * BATCH), stream, strict=False)][
            -BATCH:
        ]
    except ImportError:
        print("WebDataset is left out: it is not installed")
    return found


def peers_of(python: str, count: int) -> dict[str, list[int]]:
    """As `peers`, in an environment of their own."""
    code = f"import json; from benchmarks.shuffle_quality import peers; print(json.dumps(peers({count})))"
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def own_batches(folder: Path, kind: str, count: int, modes: tuple[str, ...]) -> dict[str, list[int]]:
    """As `peers`, of penstock before and now, on the table's own row numbers."""
    found = {}
    for mode in modes:
        batches = shuffled(folder, kind, mode, 1).batch(BATCH)
        source_rows = rows_by_features(count)
        for number, batch in enumerate(batches):
            if number == count // 2 // BATCH:
                x = batch[0] if isinstance(batch, tuple) else numbers_of(batch["text"])[0]
                found[f"penstock {kind}, {mode}"] = [source_rows[row.tobytes()] for row in np.asarray(x, np.float32)]
                break
    return found


def rows_by_features(count: int) -> dict[bytes, int]:
    """Which row has these features; ties do not matter for a picture."""
    x, _ = rows_of(count, 0, True)
    return {row.tobytes(): number for number, row in enumerate(x)}


def plot(pictures: dict[str, list[int]], count: int, out: Path) -> None:
    """One line a contestant: each dot is a row of one batch, at its place in the dataset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 0.5 + 0.42 * len(pictures)))
    for line, rows in enumerate(reversed(pictures.values())):
        axes.plot(np.array(rows) / count * 100, [line] * len(rows), "|", markersize=12, alpha=0.5, color="#1f5fa8")
        shown = len(np.unique(np.array(rows) * 100 // count))
        axes.text(101, line, f"{shown} of 100", va="center", fontsize=9)
    axes.set_yticks(range(len(pictures)), list(reversed(pictures)), fontsize=9)
    axes.set_xlim(0, 100)
    axes.set_xlabel(
        "place in the dataset, percent: rows of the batch in the middle of an epoch, and stretches they show"
    )
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def report(found: dict[str, Any], out: Path) -> None:
    """The page with the tables."""
    lines = [
        "# Shuffle quality",
        "",
        f"{found['rows']:,} rows of {FEATURES} numbers, sorted by class ({CLASSES}); one epoch, batch {BATCH}, the "
        f"same small network; accuracy on fresh rows, mean of {found['rounds']} seeds. {found['machine']}",
        "",
        f"In memory, exact shuffle: accuracy {found['memory']:.3f}.",
        "",
        "| reader | classes in a batch before (mean, least) | now | accuracy before | now | coverage before | now "
        "| rows/s, now/before | rows/processor second, now/before | peak memory, now/before |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, entry in found["kinds"].items():
        old, new = entry["before"], entry["now"]
        lines.append(
            f"| {kind} | {old['classes']:.1f}, {old['least']} | {new['classes']:.1f}, {new['least']} "
            f"| {old['accuracy']:.3f} | {new['accuracy']:.3f} | {old['coverage']:.2f} | {new['coverage']:.2f} "
            f"| {entry['rate_ratio']:.2f} | {_shown(entry.get('cpu_ratio'))} | {_shown(entry['peak_ratio'])} |"
        )
    lines += [
        "",
        "`before` is the shuffle of neighbouring units in windows of three blocks, as penstock had it. Where `now`",
        "goes through a row store on disk (all but csv, jsonl and text), its first epoch also writes the store:",
        "",
        "| reader | first epoch, seconds, before | now |",
        "|---|---|---|",
        *(
            f"| {kind} | {entry['before']['first_s']:.1f} | {entry['now']['first_s']:.1f} |"
            for kind, entry in found["kinds"].items()
        ),
        "",
        "![rows of one batch](shuffle_quality.png)",
        "",
    ]
    out.write_text("\n".join(lines), encoding="utf-8")


def _shown(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before-rounds", type=int, default=3)
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--machine", default="")
    parser.add_argument("--peers", help="a Python that has peers installed: their batches as JSON, for the picture")
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        folder, kind, mode, seed, learn = json.loads(asked.child)
        print(json.dumps(child(Path(folder), kind, mode, seed, learn)))
        return
    folder = Path(asked.folder)
    write_data(folder, asked.rows)
    memory = float(np.mean([in_memory(asked.rows, seed)["accuracy"] for seed in range(asked.rounds)]))
    found = {"rows": asked.rows, "rounds": asked.rounds, "machine": asked.machine, "memory": memory}
    found["kinds"] = compared(folder, asked.rounds, min(asked.rounds, asked.before_rounds))
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "shuffle_quality.json").write_text(json.dumps(found, indent=1))
    report(found, out / "shuffle_quality.md")
    pictures = peers(asked.rows) if asked.peers is None else peers_of(asked.peers, asked.rows)
    for kind in KINDS:
        modes = ("before", "now") if kind in ("csv", "parquet 8 groups") else ("now",)
        pictures |= own_batches(folder, kind, asked.rows, modes)
    plot(pictures, asked.rows, out / "shuffle_quality.png")


if __name__ == "__main__":
    main()

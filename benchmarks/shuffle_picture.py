"""Where do the rows of one batch come from? A line for every reader, before and now, and for peers.

Covers: the batch in the middle of an epoch over rows sorted by class; peers on the numbers of these rows in 16 files.
Does not cover: whole epochs (shuffle_accuracy.py), speed (shuffle_speed.py).

    python -m benchmarks.shuffle_picture [--rows 1000000] [--kinds csv jsonl] [--peers PYTHON] [--folder FOLDER]

`--peers` is a Python that has tensorflow, datasets, grain and webdataset; a peer that is missing is left out by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shuffle_data import BATCH, CSV_FILES, KINDS, RowNumbers, keep, numbers_of, place, shuffled, write_data

ROOT = Path(__file__).resolve().parent.parent
SEED = 1
OURS, BEFORE, PEER, UNIFORM = "penstock", "penstock before", "peer", "uniform"
COLOURS = {OURS: "#1f5fa8", BEFORE: "#8a94a0", PEER: "#c2571a", UNIFORM: "#2f7d4f"}


def middle(rows: Iterable[int], count: int) -> list[int]:
    """The batch in the middle of an epoch."""
    first = count // 2 // BATCH * BATCH
    return [int(row) for row in islice(rows, first, first + BATCH)]


def files(count: int) -> list[tuple[int, int]]:
    """The first row of each file, and the row after its last one."""
    return [(count * file // CSV_FILES, count * (file + 1) // CSV_FILES) for file in range(CSV_FILES)]


def tf_data(count: int) -> list[int]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    starts = tf.data.Dataset.from_tensor_slices(np.array(files(count))).shuffle(CSV_FILES, seed=SEED)
    rows = starts.interleave(lambda span: tf.data.Dataset.range(span[0], span[1]), cycle_length=4)
    return middle(rows.shuffle(10_000, seed=SEED).as_numpy_iterator(), count)


def hugging_face(count: int) -> list[int]:
    import datasets

    def numbers(spans: list[tuple[int, int]]) -> Iterator[dict[str, int]]:
        for first, last in spans:
            yield from ({"row": row} for row in range(first, last))

    stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"spans": files(count)})
    return middle((sample["row"] for sample in stream.shuffle(seed=SEED)), count)


def grain_stream(count: int) -> list[int]:
    import grain

    first = count // 2 // 10_000 * 10_000  # windows do not know of each other: those before need not be made
    rows = grain.MapDataset.range(first, count).to_iter_dataset()
    mixed = grain.experimental.WindowShuffleIterDataset(rows, window_size=10_000, seed=SEED)
    return [int(row) for row in islice(iter(mixed), BATCH)]


def grain_random_access(count: int) -> list[int]:
    import grain

    rows, first = grain.MapDataset.range(count).shuffle(seed=SEED), count // 2 // BATCH * BATCH
    return [int(rows[place]) for place in range(first, first + BATCH)]


def web_dataset(count: int) -> list[int]:
    import random

    import webdataset as wds

    def rows(spans: Iterable[tuple[int, int]]) -> Iterator[int]:
        for first, last in spans:
            yield from range(first, last)

    mixed = wds.DataPipeline(
        lambda: iter(files(count)), wds.shuffle(100, rng=random.Random(SEED)), rows,
        wds.shuffle(1000, rng=random.Random(SEED)),
    )  # fmt: skip
    return middle(iter(mixed), count)


PEERS: dict[str, Callable[[int], list[int]]] = {
    "tf.data, files shuffled, 4 interleaved, shuffle(10,000)": tf_data,
    "HF datasets streaming, shuffle()": hugging_face,
    "WebDataset, shards shuffled, shuffle(1,000)": web_dataset,
    "Grain, stream, WindowShuffle(10,000)": grain_stream,
    "Grain, random access (ArrayRecord), shuffle()": grain_random_access,
}


def peers(count: int) -> dict[str, list[int] | str]:
    """The batch of each peer that is installed, or why there is none."""
    found: dict[str, list[int] | str] = {}
    for name, batch in PEERS.items():
        try:
            found[name] = batch(count)
        except (ImportError, AttributeError) as error:
            found[name] = f"left out: {error}"
    return found


def peers_in(python: str, count: int) -> dict[str, list[int] | str]:
    """As `peers`, in an environment of their own."""
    code = f"import json; from benchmarks.shuffle_picture import peers; print(json.dumps(peers({count})))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, list[int] | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(folder: Path, count: int, kind: str, mode: str, numbers: RowNumbers) -> list[int]:
    """As `middle`, of a reader of real files."""
    batches = iter(shuffled(folder, kind, mode, SEED).batch(BATCH))
    batch = next(islice(batches, count // 2 // BATCH, None))
    found: list[int] = numbers.of(numbers_of(batch)[0]).tolist()
    return found


def plot(lines: list[tuple[str, str, list[int]]], count: int, out: Path) -> None:
    """One line a contestant: each mark is a row of one batch, at its place in the dataset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 0.9 + 0.3 * len(lines)))
    for line, (name, group, rows) in enumerate(reversed(lines)):
        places = np.array(rows) / count * 100
        axes.plot(places, [line] * len(rows), "|", markersize=11, markeredgewidth=0.7, alpha=0.55, color=COLOURS[group])
        shown = len(np.unique(np.array(rows) * 100 // count))
        axes.text(101.5, line, f"{shown}", va="center", fontsize=9, color="#333333")
        axes.text(-1.5, line, name, va="center", ha="right", fontsize=9, color=COLOURS[group])
    axes.text(101.5, len(lines) - 0.2, "hundredths shown", fontsize=8, color="#555555", ha="center")
    axes.set_yticks([])
    axes.set_xlim(-0.5, 100.5)
    axes.set_ylim(-0.8, len(lines) - 0.4)
    axes.set_xlabel("place in the dataset, percent", fontsize=9, color="#333333")
    axes.tick_params(axis="x", labelsize=9, colors="#555555", length=3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="*", default=[kind for kind in KINDS if kind != "tar.gz"])
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--peers", help="a Python that has the peers installed")
    asked = parser.parse_args()
    folder, out, count = Path(asked.folder), Path(asked.out), asked.rows
    os.environ.setdefault("PENSTOCK_CACHE", str(folder / "cache"))
    write_data(folder, count)
    numbers = RowNumbers(count)
    lines = [("in memory, permuted", UNIFORM, middle(np.random.default_rng(SEED).permutation(count), count))]
    for kind in asked.kinds:  # not tar.gz, whose rows are fewer: see TAR_PART
        lines.append((f"penstock, {kind}", OURS, ours(folder, count, kind, "now", numbers)))
    for kind in asked.kinds:
        lines.append((f"penstock before, {kind}", BEFORE, ours(folder, count, kind, "before", numbers)))
    kept = out / "shuffle_picture.json"
    for name, batch in (peers(count) if asked.peers is None else peers_in(asked.peers, count)).items():
        if isinstance(batch, str):
            print(f"{name}: {batch}")
        else:
            lines.append((name, PEER, batch))
    for name, group, rows in lines:
        shown = len(np.unique(np.array(rows) * 100 // count))
        found: dict[str, Any] = keep(kept, {"rows": count}, name, {"group": group, "shown": shown})
    plot(lines, count, out / "shuffle_picture.png")
    print(place(found["machine"]), {name: entry["shown"] for name, entry in found["kinds"].items()})


if __name__ == "__main__":
    main()

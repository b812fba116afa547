"""1,000 ranks and 100 TB, on paper: the product's own order and position code over a source that only has numbers.

`python -m benchmarks.scale_on_paper` writes results/scale_on_paper.{md,json,png}. No byte is read: what is measured is
the arithmetic that every rank does (which rows are mine), the size and cost of positions, dividing an epoch anew,
listing the names of 100 TB, and what a host's cache can have of the next epoch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.schema import Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.dataset import Dataset
from penstock.order.permutation import places_of_rows
from penstock.sources.listing import shard_files

RESULTS = Path(__file__).parent / "results"
ROW_NBYTES = 100_000
ROWS = 1_000_000_000
RANKS = 1_000
PER_HOST = 8
BATCH = 256
FILES = 100_000
"""Shards of 1 GB."""
WORLDS = (10, 100, RANKS)


class Numbers:
    """A dataset of a billion pictures, of which a row is its number."""

    label = "100 TB of pictures"
    on_error = OnError("raise", None)

    def schema(self) -> Schema:
        return Schema((Field("n", np.dtype(np.int64), ()),), "n")

    def num_rows(self) -> int:
        return ROWS

    def fetch_nbytes(self, rows: int) -> int:
        return 8 * rows

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def decode(self, fetched: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        return Block({"n": fetched}, "n")

    def decode_into(self, fetched: np.ndarray, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        out["n"][:] = fetched

    def fingerprint(self) -> str:
        return "numbers"


def dataset(rank: int, world: int) -> Dataset:
    return Dataset.of(Numbers()).shuffle(seed=1).shard(rank, world).batch(BATCH)


def first_batches(rank: int, world: int, steps: int, at: Any = None) -> tuple[list[np.ndarray], Any, float]:
    """A rank's first batches, its position, and the seconds until the first batch."""
    ds = dataset(rank, world)
    began = time.perf_counter()
    ds = ds if at is None else ds.resume(at)
    found = []
    with iter(ds) as batches:
        for _ in range(steps):
            found.append(np.array(next(batches)))
            if len(found) == 1:
                first_s = time.perf_counter() - began
        return found, batches.position, first_s


def coverage(rows: np.ndarray) -> float:
    """Of 100 stretches of the dataset, those that 256 rows come from, against a uniform shuffle."""
    return len(np.unique(rows * 100 // ROWS)) / (100 * (1 - 0.99**BATCH))


def listed() -> tuple[int, float, int]:
    """Names of all shards in a remote store, the seconds to list them, and the letters of a name."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    store = MemoryFileSystem()
    for number in range(FILES):
        path = f"/paper/{number // 1000:03d}/{number:06d}.tar"
        store.store[path] = MemoryFile(store, path)
    began = time.perf_counter()
    try:
        names = shard_files.pack(shard_files.remote_files("memory://paper", (".tar",)))
    finally:
        store.store.clear()
    return len(names), time.perf_counter() - began, sum(map(len, names)) // len(names)


def had_before() -> float:
    """Of the rows that a host's ranks see in an epoch, the share that they saw in the epoch before."""
    steps = np.arange(ROWS // RANKS)[:, None] * RANKS
    places = (steps + np.arange(PER_HOST)).ravel()
    first, second = (places_of_rows(ROWS, 1, (epoch,))(places) for epoch in range(2))
    mine = first_batches(3, RANKS, 1)[0][0]
    assert np.array_equal(mine, first.reshape(-1, PER_HOST)[:BATCH, 3])  # these are the rows that a rank really gets
    return float(np.isin(second, first).mean())


def growth() -> dict[int, tuple[float, float, int]]:
    """By number of ranks: seconds to the first batch, to go on with a tenth fewer, and bytes of a position."""
    found = {}
    for world in WORLDS:
        ranks = [first_batches(rank, world, 2) for rank in range(world)]
        positions = [position for _, position, _ in ranks]
        began = time.perf_counter()
        first_batches(0, world - world // 10, 1, positions)
        first_s = float(np.median([seconds for _, _, seconds in ranks]))
        found[world] = first_s, time.perf_counter() - began, max(len(json.dumps(at)) for at in positions)
    return found


def measure() -> dict[str, Any]:
    files, listing_s, letters = listed()
    ranks = [first_batches(rank, RANKS, 2) for rank in range(RANKS)]
    rows = np.concatenate([row for batches, _, _ in ranks for row in batches])
    positions = [position for _, position, _ in ranks]
    lengths = [len(json.dumps(position)) for position in positions]
    began = time.perf_counter()
    later, position, _ = first_batches(0, 900, 4, positions)
    merged_s = time.perf_counter() - began
    return {
        "rows": ROWS,
        "nbytes": ROWS * ROW_NBYTES,
        "ranks": RANKS,
        "rows seen in two steps": len(rows),
        "of them more than once": int(len(rows) - len(np.unique(rows))),
        "coverage of a rank's batch, least": min(coverage(b) for batches, _, _ in ranks for b in batches),
        "coverage of a rank's batch, mean": float(np.mean([coverage(b) for batches, _, _ in ranks for b in batches])),
        "position of a rank, most bytes": max(lengths),
        "seconds to the first batch, median": float(np.median([seconds for _, _, seconds in ranks])),
        "seconds to go on with 900 ranks instead of 1,000": merged_s,
        "position after that, bytes": len(json.dumps(position)),
        "seen again after that": int(np.isin(np.concatenate(later), rows).sum()),
        "bytes a host reads per epoch": ROWS * ROW_NBYTES * PER_HOST // RANKS,
        "steps per epoch": len(dataset(0, RANKS)),
        "share of a host's rows that its cache has from the epoch before, if it keeps all": had_before(),
        "names of shards": files,
        "seconds to list them": listing_s,
        "letters of a name": letters,
    }


def draw(found: dict[int, tuple[float, float, int]]) -> None:
    """Seconds and bytes over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    for at, name in enumerate(("first batch of a rank", "going on with a tenth fewer ranks")):
        left.plot(list(found), [values[at] for values in found.values()], marker="o", label=name)
    left.set(xscale="log", yscale="log", xlabel="ranks", ylabel="seconds")
    left.legend()
    right.plot(list(found), [values[2] for values in found.values()], marker="o")
    right.set(xscale="log", xlabel="ranks", ylabel="bytes of a rank's position", ylim=(0, 1024))
    figure.tight_layout()
    figure.savefig(RESULTS / "scale_on_paper.png", dpi=110)


def main() -> None:
    found, grown = measure(), growth()
    draw(grown)
    lines = [
        f"| {name} | {value:,.4g} |" if isinstance(value, float) else f"| {name} | {value:,} |"
        for name, value in found.items()
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scale_on_paper.json").write_text(json.dumps({**found, "by ranks": grown}, indent=1) + "\n")
    text = [
        "# 1,000 ranks, 100 TB: the order and position code",
        "",
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; the machine was shared.",
        "",
        "![by ranks](scale_on_paper.png)",
        "",
    ]
    (RESULTS / "scale_on_paper.md").write_text("\n".join([*text, "| | |", "|---|---|", *lines]) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

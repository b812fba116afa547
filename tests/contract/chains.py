"""Chains that between them use every verb, over sources whose rows are their own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import from_tensor_slices
from penstock.dataset import Dataset
from tests.stand_ins import NumberPieces, NumberRows, NumberUnits


def rows(n: int = 20) -> Dataset:
    return Dataset.of(NumberRows(n))


def units(sizes: tuple[int, ...] = (7, 0, 13, 30, 1), part_rows: int = 5) -> Dataset:
    return Dataset.of(NumberUnits(sizes, part_rows))


def pieces(count: int = 61) -> Dataset:
    return Dataset.of(NumberPieces(count))


def noisy(x: Any, rng: np.random.Generator) -> float:
    return float(x) + rng.random()


def even(x: Any) -> bool:
    return bool(x % 2 == 0)


def double(x: Any) -> Any:
    return x * 2


def pictures(n: int = 14) -> Dataset:
    """Pictures of noise, each of its own, with their numbers."""
    noise = np.random.default_rng(0).integers(0, 256, (n, 9, 8, 3), dtype=np.uint8)
    return from_tensor_slices((noise, np.arange(n)))


def as_pictures(x: Any) -> Any:
    """Rows of numbers as pictures of these numbers."""
    return np.broadcast_to(np.asarray(x, np.float32)[:, None, None, None], (len(x), 4, 5, 1)) + np.float32(0.5)


CHANGES: dict[str, Any] = {"flip": "both", "crop": 0.4, "rotate": 30, "colour": 0.3, "cutout": 0.3}

CHAINS: dict[str, Dataset] = {
    "rows": rows(),
    "batch": rows().batch(6),
    "drop_last": units().batch(6, drop_last=True),
    "shuffle rows": rows().shuffle(seed=1).batch(6),
    "shuffle units": units().shuffle(seed=2).batch(4),
    "shuffle window": units().shuffle(seed=2, window=9).batch(4),
    "shuffle pieces": pieces().shuffle(seed=2).batch(4),
    "shuffle pieces window": pieces().shuffle(seed=2, window=7).map(double).batch(4),
    "shard pieces": pieces(160).shuffle(seed=2).shard(1, 3).batch(4),
    "map": units().map(double),
    "map rng": rows().shuffle(seed=3).map(noisy).batch(3),
    "map after shuffle": units().shuffle(seed=2, window=9).map(double).filter(even).batch(4),
    "map_batches": units().map_batches(double).batch(4),
    "map_batches rows": units().map_batches(double, rows=2).shuffle(seed=1, window=11).batch(4),
    "filter": units().filter(even).batch(4),
    "filter batches": rows().batch(3).filter(lambda b: b.sum() % 2 == 0),
    "map batches after batch": rows().batch(6).map(double),
    "normalise": rows().shuffle(seed=1).normalise(scale=0.5, mean=3).batch(6),
    "normalise units": units().shuffle(seed=2, window=9).normalise(mean=2, std=3).batch(4),
    "normalise samples": units().shuffle(seed=2, window=9).normalise(mean=2, std=3),
    "normalise batches": units().batch(4).normalise(scale=2),
    "normalise shard": units((3,) * 12).normalise(std=2).shuffle(seed=2).shard(1, 3).batch(4),
    "augment": pictures().shuffle(seed=1).augment(**CHANGES).normalise(scale=1 / 255, layout="CHW").batch(4),
    "augment floats": pictures().normalise(scale=1 / 255).augment(**CHANGES).batch(4),
    "augment units": units().map_batches(as_pictures).shuffle(seed=2, window=9).augment(**CHANGES).batch(4),
    "augment units normalised": units().map_batches(as_pictures).augment(**CHANGES).normalise(std=2).batch(4),
    "augment shard": pictures(40).shuffle(seed=1).augment(**CHANGES).shard(1, 3).batch(4),
    "mixup": pictures().shuffle(seed=1).batch(5).mixup(classes=14),
    "unbatch": units().batch(6).unbatch(),
    "batch of batches": rows().batch(2).batch(3),
    "shuffled batches": rows().batch(3).shuffle(seed=4),
    "repeat": rows(7).shuffle(seed=1).batch(3).repeat(3),
    "repeat before batch": units().shuffle(seed=1, window=8).repeat(2).batch(11),
    "take": units().take(17).batch(5),
    "skip": units().skip(17).batch(5),
    "shard rows": rows().shuffle(seed=2).shard(1, 3).batch(4),
    "shard units": units((3,) * 12).shuffle(seed=2).shard(1, 3).batch(4),
    "shard few units": units().shard(0, 3).batch(4),
    "shard batches": units().batch(4).shard(1, 2),
    "concatenate": rows().concatenate(units(), rows(3)).batch(7),
    "zip": rows().zip(units()).batch(3),
    "interleave": rows().interleave(units(), weights=[1, 2], seed=5).batch(7),
    "interleave shards": rows(5).interleave(lambda v: rows(int(v) + 3), cycle_length=2, block_length=2).batch(4),
    "prefetch": rows().batch(4).prefetch(-1),
}


def plain(element: Any) -> Any:
    """An element as lists and numbers, to compare and print."""
    if isinstance(element, tuple):
        return tuple(plain(part) for part in element)
    if isinstance(element, dict):
        return {key: plain(part) for key, part in element.items()}
    return np.asarray(element).tolist()


def elements(ds: Any) -> list[Any]:
    return [plain(element) for element in ds]

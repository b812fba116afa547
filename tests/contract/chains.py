"""Chains that between them use every verb, over sources whose rows are their own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.dataset import Dataset
from tests.stand_ins import NumberRows, NumberUnits


def rows(n: int = 20) -> Dataset:
    return Dataset.of(NumberRows(n))


def units(sizes: tuple[int, ...] = (7, 0, 13, 30, 1), part_rows: int = 5) -> Dataset:
    return Dataset.of(NumberUnits(sizes, part_rows))


def noisy(x: Any, rng: np.random.Generator) -> float:
    return float(x) + rng.random()


def even(x: Any) -> bool:
    return bool(x % 2 == 0)


def double(x: Any) -> Any:
    return x * 2


CHAINS: dict[str, Dataset] = {
    "rows": rows(),
    "batch": rows().batch(6),
    "drop_last": units().batch(6, drop_last=True),
    "shuffle rows": rows().shuffle(seed=1).batch(6),
    "shuffle units": units().shuffle(seed=2).batch(4),
    "shuffle window": units().shuffle(seed=2, window=9).batch(4),
    "map": units().map(double),
    "map rng": rows().shuffle(seed=3).map(noisy).batch(3),
    "map after shuffle": units().shuffle(seed=2, window=9).map(double).filter(even).batch(4),
    "map_batches": units().map_batches(double).batch(4),
    "map_batches rows": units().map_batches(double, rows=2).shuffle(seed=1, window=11).batch(4),
    "filter": units().filter(even).batch(4),
    "filter batches": rows().batch(3).filter(lambda b: b.sum() % 2 == 0),
    "map batches after batch": rows().batch(6).map(double),
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

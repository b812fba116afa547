"""Datasets of file names and of other libraries' items, for those who come from tf.data, torch or Ray.

Covers: `list_files`, `from_torch`, `from_ray`.
Does not cover: bounding a tf.data pipeline that stays one (feed/bound.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import InvalidInput
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.listing.sample_files import FileRules
from penstock.sources.listing.sample_files import list_files as scan_files
from penstock.sources.named import FileNames, Items
from penstock.sources.ray_data import RaySource
from penstock.sources.storage import files as storage
from penstock.sources.tables.blocks import TableShape


def list_files(pattern: storage.Paths, *, shuffle: bool = False, seed: int = 0) -> Dataset:
    """Paths of files as a dataset of strings, sorted; unlike tf.data's, not shuffled unless asked.

    `pattern` is a glob, a folder or a list, local or remote. A million names cost no million Python objects.

    >>> [os.path.basename(path) for path in list_files("*.npy")]
    ['x.npy', 'y.npy']
    """
    name = os.fspath(pattern) if isinstance(pattern, (str, os.PathLike)) else f"{len(pattern)} paths"
    ds = Dataset.of(FileNames(scan_files(pattern, FileRules((), by_folder=False, classes=None)), name))
    return ds.shuffle(seed=seed) if shuffle else ds


def from_torch(
    dataset: Any, *, on_error: Literal["raise", "skip"] = "raise", max_errors: float | None = None
) -> Dataset:
    """A map-style torch dataset (anything with `len` and `[i]`) as a source with an exact shuffle.

    Items are read by threads of this process, so nothing is copied by touching it in forked workers.

    >>> [int(n) for n in from_torch([10, 20, 30])]
    [10, 20, 30]
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InvalidInput(f"from_torch needs a map-style dataset with len() and [i], not {type(dataset).__name__}.")
    return Dataset.of(Items(dataset, OnError(on_error, max_errors)))


def from_ray(
    dataset: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    matrix: bool | None = None,
    dtype: Any = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    fill: Mapping[str, Any] | float | str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Stream a `ray.data.Dataset`: Ray reads and prepares on its cluster, the rows arrive within this process's budget.

    Samples are as those of `read_parquet`. The dataset is told to keep the order of its rows
    (`execution_options.preserve_order`), so that a position means something; to resume, it is streamed again and what
    came before is dropped. Several ranks each stream all of it and keep their own rows: what is read often belongs in
    files (`penstock pack --cluster`).

    >>> ds = from_ray(ray.data.range(100)).batch(10)  # doctest: +SKIP
    """
    if not hasattr(dataset, "iter_batches") or not hasattr(dataset, "limit"):
        why = "."
        if hasattr(dataset, "iter_batches"):
            why = ": Ray deals out shards as they come, so that no position in one means anything. Ranks divide the "
            why += "whole dataset by themselves."
        raise InvalidInput(f"from_ray() needs a ray.data.Dataset, not a {type(dataset).__name__}{why}")
    shape = TableShape(
        features=features,
        label=label,
        matrix=matrix,
        dtype=dtype,
        columns=columns,
        fill=fill,
        categories=dict(categories or {}),
    )
    return Dataset.of(RaySource(dataset, shape, OnError(on_error, max_errors)))

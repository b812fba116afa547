"""Datasets of file names and of other libraries' items, for those who come from tf.data or torch.

Covers: `list_files`, `from_torch`.
Does not cover: bounding a tf.data pipeline that stays one (feed/bound.py).
"""

from __future__ import annotations

import os
from typing import Any, Literal

from penstock.core.errors import InvalidInput
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.listing.scan import FileRules
from penstock.sources.listing.scan import list_files as scan_files
from penstock.sources.named import FileNames, Items
from penstock.sources.storage import files as storage


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

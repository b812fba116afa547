"""`read_numpy` and `from_tensor_slices`.

Covers: the arguments users see, and naming arrays of files.
Does not cover: taking rows (sources/arrays/source.py, sources/arrays/npy.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import BadData, InvalidInput
from penstock.core.source import OnError
from penstock.core.tree import Tree, flatten
from penstock.dataset import Dataset
from penstock.read.array_columns import is_name_or_names
from penstock.sources.arrays.npy import joined_npy, joined_npz, npz_names
from penstock.sources.arrays.source import ArraySource, columns_of
from penstock.sources.storage import files as storage

SUFFIXES = (".npy", ".npz")


def from_tensor_slices(tensors: Any) -> Dataset:
    """Rows of arrays along their first axis, as in tf.data: an array, a list, or a tuple or dict of them.

    Arrays are held by reference, not copied. A pandas data frame or a PyArrow table stands for a dict of its columns.

    >>> [(int(x), int(y)) for x, y in from_tensor_slices(([1, 2], [3, 4]))]
    [(1, 3), (2, 4)]
    """
    columns, tree = columns_of(tensors)
    return Dataset.of(ArraySource(columns, tree))


def read_numpy(
    source: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Rows of arrays, in memory or in `.npy` and `.npz` files that are never loaded whole.

    A path, glob or list of paths is one dataset, file after file: samples of `.npy` files are bare rows, those of
    `.npz` files dicts of their arrays, or `(x, y)` with `features=` and `label=`. A tuple or dict of paths, such as
    `("x.npy", "y.npy")`, puts files side by side. `on_error="skip"` leaves out damaged files of one dataset; side by
    side none can be left out, for rows would no longer belong together. Compressed `.npz` files are unpacked
    once, into the folder `cache` or the user's cache folder.

    >>> x, y = next(iter(read_numpy(("x.npy", "y.npy")).batch(4)))
    >>> x.shape, y.shape
    ((4, 3), (4,))
    """
    policy = OnError(on_error, max_errors)
    tree, leaves = flatten(source)
    paths = [leaf for leaf in leaves.values() if _is_path(leaf)]
    if not paths:
        if features is not None or label is not None:
            raise InvalidInput("features= and label= choose arrays of .npz files. Give a tuple or dict of arrays.")
        columns, tree = columns_of(source)
        return Dataset.of(ArraySource(columns, tree, on_error=policy))
    if len(paths) != len(leaves):
        raise InvalidInput("Give either arrays or paths, not both in one dataset.")
    if isinstance(tree, str):
        return Dataset.of(_one(storage.expand(paths[0], suffixes=SUFFIXES), features, label, cache, policy))
    found = {name: joined_npy(storage.expand(leaf)) for name, leaf in leaves.items()}
    return Dataset.of(ArraySource(found, tree, f"numpy({', '.join(map(str, paths))})", policy))


def _is_path(leaf: object) -> bool:
    if isinstance(leaf, (list, tuple)):
        return bool(leaf) and all(isinstance(item, (str, os.PathLike)) for item in leaf)
    return isinstance(leaf, (str, os.PathLike))


def _one(
    files: Sequence[str],
    features: str | Sequence[str] | None,
    label: str | None,
    cache: str | os.PathLike[str] | None,
    policy: OnError,
) -> ArraySource:
    """Files one after the other."""
    shown = f"numpy({files[0]}" + (f" and {len(files) - 1} more)" if len(files) > 1 else ")")
    if not files[0].lower().endswith(".npz"):
        if features is not None or label is not None:
            raise InvalidInput(f"features= and label= choose arrays of .npz files; {files[0]} holds a single one.")
        return ArraySource({"value": joined_npy(files, policy)}, "value", shown, policy)
    folder = None if cache is None else os.fspath(cache)
    tree = _npz_tree(_first_names(files, policy), features, label)
    return ArraySource(joined_npz(files, flatten_names(tree), folder, policy), tree, shown, policy)


def _first_names(files: Sequence[str], policy: OnError) -> list[str]:
    """Names of the arrays in the first archive that can be opened; joining counts those that cannot."""
    for path in files:
        try:
            return npz_names(path)
        except BadData:
            if policy.mode == "raise":
                raise
    raise BadData(files[0], f"none of {len(files)} files could be read as archives of arrays")


def _npz_tree(names: list[str], features: str | Sequence[str] | None, label: str | None) -> Tree:
    if label is not None and not isinstance(label, str):
        raise InvalidInput(f"label= is the name of one array, not {label!r}. There are: {', '.join(names)}.")
    if features is not None and not is_name_or_names(features):
        raise InvalidInput(f"features= is a name or a list of names, not {features!r}. There are: {', '.join(names)}.")
    if features is None and label is None:
        return {name: name for name in names}
    if features is None:
        rest = [name for name in names if name != label]
        features = rest[0] if len(rest) == 1 else rest
    x: Tree = features if isinstance(features, str) else {name: name for name in features}
    return x if label is None else (x, label)


def flatten_names(tree: Tree) -> list[str]:
    """Names of the arrays that a tree shows."""
    found: Mapping[str, Any] = flatten(tree)[1]
    return [str(name) for name in found.values()]

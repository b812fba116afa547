"""`read_hdf5`: arrays in HDF5 files.

Covers: choosing datasets, checking arguments, choosing row or stretch access.
Does not cover: reading (sources/hdf5/source.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from penstock.core.errors import BadData, InvalidInput
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.read.array_columns import choose_columns, either
from penstock.sources.hdf5.files import Files5, row_addressable, survey_all
from penstock.sources.hdf5.source import Hdf5Rows, Hdf5Units
from penstock.sources.hdf5.survey import find_dataset, list_datasets, opened
from penstock.sources.storage import files as storage

SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf")

ROW_NBYTES = 4096
"""Rows at least this large are read one by one (exact shuffle); reading smaller ones so costs more than it is worth."""


def read_hdf5(
    paths: storage.Paths,
    x: str | None = None,
    y: str | None = None,
    *,
    features: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    access: Literal["auto", "rows", "blocks"] = "auto",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Stream datasets of HDF5 files; a sample is one index of their first axis.

    `x="train/images", y="train/labels"` gives `(x, y)`, `x` alone the bare array (`features` and
    `label` are other names for them); `columns` (a list of dataset
    paths, or names for them) gives dicts; neither gives a dict of all datasets. A field of a compound type is
    named "dataset.field". `access="rows"` reads every row for
    itself, so that shuffling is exact; "blocks" reads stretches of chunks; "auto" takes rows where they are stored
    unfiltered, locally, and are large enough.

    >>> x, y = next(iter(read_hdf5("shards/*.h5", x="images", y="labels").shuffle(seed=1).batch(4)))
    >>> x.shape, y.shape
    ((4, 8, 8), (4,))
    """
    if access not in ("auto", "rows", "blocks"):
        raise InvalidInput(f"access must be 'auto', 'rows' or 'blocks', not {access!r}.")
    policy = OnError(on_error, max_errors)
    found = storage.expand(paths, suffixes=SUFFIXES)
    x, y = either("x", x, "features", features), either("y", y, "label", label)
    wanted, tree = choose_columns(found[0], x, y, columns, lambda: _lengths(found[0]))
    files = survey_all(found, wanted, policy)
    label = f"hdf5({found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''})"
    if _by_rows(access, files):
        return Dataset.of(Hdf5Rows(label, files, tree, policy))
    return Dataset.of(Hdf5Units(label, files, tree, policy))


def _by_rows(access: str, files: Files5) -> bool:
    possible = row_addressable(files)
    if access == "rows" and not possible:
        odd = next(f for facts in files.kinds for f in facts.values() if f.storage in ("packed", "library"))
        raise InvalidInput(
            f"access='rows' needs rows that stand alone in the file, but dataset {odd.name!r} is compressed, tiled or "
            f"text. Leave access out, or store it contiguous."
        )
    if access != "auto":
        return access == "rows"
    local = not storage.any_remote(files.paths)
    return possible and local and sum(f.row_nbytes for f in files.facts(0).values()) >= ROW_NBYTES


def _lengths(first: str) -> dict[str, int]:
    with opened(first) as file:
        found = {name: find_dataset(file, name)[0] for name in list_datasets(file)}
        gone = [name for name, dataset in found.items() if dataset is None]
        if gone:
            raise BadData(first, f"its HDF5 structure is damaged: dataset {gone[0]!r} is listed and cannot be opened")
        return {name: dataset.shape[0] for name, dataset in found.items()}

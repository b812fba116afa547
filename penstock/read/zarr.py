"""`read_zarr`: arrays in Zarr stores.

Covers: finding stores, choosing arrays, checking arguments, choosing row or stretch access.
Does not cover: reading (sources/zarr/source.py).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Literal

from penstock.core.errors import InvalidInput, NotFound, SchemaChanged
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.read.array_columns import choose_columns, either
from penstock.sources.storage import files as storage
from penstock.sources.storage import remote
from penstock.sources.zarr.source import ZarrArray, ZarrRows, ZarrUnits, list_arrays, open_store, survey

ROW_NBYTES = 4096
"""Rows at least this large that are a chunk each are read one by one."""


def read_zarr(
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
    """Stream arrays of Zarr stores (format 2 or 3, local or remote); a sample is one index of their first axis.

    `x="images", y="labels"` gives `(x, y)`, `x` alone the bare array (`features` and
    `label` are other names for them); `columns` (a list of array paths, or names for
    them) gives dicts; neither gives a dict of all arrays, or the bare array where the store is one.
    `access="rows"` reads every row for itself, so that shuffling is exact, and decodes a row's chunk each time;
    "blocks" reads stretches of whole chunks; "auto" takes rows where a chunk is one large row.

    >>> x, y = next(iter(read_zarr("train.zarr", x="images", y="labels").shuffle(seed=1).batch(4)))
    >>> x.shape, y.shape
    ((4, 8, 8), (4,))
    """
    if access not in ("auto", "rows", "blocks"):
        raise InvalidInput(f"access must be 'auto', 'rows' or 'blocks', not {access!r}.")
    policy = OnError(on_error, max_errors)
    found = _stores(paths)
    names = list_arrays(open_store(found[0])) if x is None and columns is None else []
    if names == [""]:
        x = ""
    x, y = either("x", x, "features", features), either("y", y, "label", label)
    wanted, tree = choose_columns(found[0], x, y, columns, lambda: _lengths(found[0], names))
    stores = [(path, survey(path, wanted)) for path in found]
    for path, facts in stores[1:]:
        _agree(stores[0], path, facts)
    label = f"zarr({found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''})"
    kind = ZarrRows if _by_rows(access, [facts for _, facts in stores]) else ZarrUnits
    return Dataset.of(kind(label, stores, tree, policy))


def _stores(paths: storage.Paths) -> list[str]:
    """Stores are folders, so that a folder is never looked into here."""
    entries = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not entries:
        raise InvalidInput("No path was given: the list is empty.")
    found: list[str] = []
    for entry in [os.fspath(entry) for entry in entries]:
        text = entry if storage.is_remote(entry) else storage.local_path(entry)
        if not glob.has_magic(text) or os.path.isdir(text):
            found.append(text.rstrip("/"))
            continue
        if storage.is_remote(text):
            fs, inside = remote.filesystem(text)
            matches = [fs.unstrip_protocol(name) for name in remote.retried(text, lambda: fs.glob(inside))]
        else:
            matches = glob.glob(text)
        if not matches:
            raise NotFound(f"No store matches {entry!r}.")
        found += sorted(matches)
    return found


def _lengths(path: str, names: list[str]) -> dict[str, int]:
    return {name: facts[name].rows for name in names for facts in [survey(path, {name: name})]}


def _by_rows(access: str, stores: Sequence[Mapping[str, ZarrArray]]) -> bool:
    text = next((fact.name for facts in stores for fact in facts.values() if fact.text), None)
    if access == "rows" and text is not None:
        raise InvalidInput(f"access='rows' is for numbers, but array {text!r} is text. Leave access out.")
    if access != "auto" or text is not None:
        return access == "rows"
    single = all(fact.chunk[0] == 1 for facts in stores for fact in facts.values())
    return single and sum(fact.row_nbytes for fact in stores[0].values()) >= ROW_NBYTES


def _agree(first: tuple[str, Mapping[str, ZarrArray]], path: str, facts: Mapping[str, ZarrArray]) -> None:
    for column, fact in facts.items():
        here, there = fact.field(column), first[1][column].field(column)
        if here != there:
            raise SchemaChanged(f"{path}: array {fact.name!r} is {here}, but in {first[0]} it is {there}.")

"""Rows that are not bytes on storage yet: names of files, and items of somebody else's map-style dataset.

Covers: `list_files`, `from_torch`.
Does not cover: opening the files (the user's function does), torch itself (anything with len and [i] will do).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData, NotFound
from penstock.core.schema import OBJECT, Field, Schema, schema_of
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import flatten
from penstock.sources.listing.packed_names import PathIndex

PATH = "path"


class FileNames:
    """A row is the path of a file. The index is packed: a million names hold no million Python objects."""

    def __init__(self, files: PathIndex, name: str) -> None:
        self._files, self.label = files, f"files({name})"
        self.on_error = OnError()

    def schema(self) -> Schema:
        return Schema((Field(PATH, OBJECT, text=True),), PATH)

    def num_rows(self) -> int:
        return len(self._files)

    def fetch_nbytes(self, rows: int) -> int:
        return 0

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def decode(self, fetched: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        names = np.empty(len(fetched), dtype=object)
        for place, row in enumerate(fetched):
            names[place] = self._files.path(int(row))
        return Block({PATH: names}, PATH, lambda i: str(names[i]))

    def decode_into(self, fetched: np.ndarray, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        out[PATH][:] = self.decode(fetched, buffers).columns[PATH]

    def fingerprint(self) -> str:
        ends = [self._files.path(row) for row in (0, len(self) - 1)] if len(self) else []
        return hashlib.sha256(repr((len(self), ends)).encode()).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._files)


class Items:
    """Items of a map-style dataset (`len` and `[i]`), read by our threads: no forked workers, no copied pages."""

    def __init__(self, dataset: Any, on_error: OnError) -> None:
        self._dataset, self._rows = dataset, len(dataset)
        self._schema: Schema | None = None
        self.label, self.on_error = f"items({type(dataset).__name__})", on_error

    def schema(self) -> Schema:
        if self._schema is None:
            self._schema = self._first()
        return self._schema

    def _first(self) -> Schema:
        """What the first item looks like; with on_error="skip", the first that can be read."""
        for row in range(self._rows):
            try:
                return schema_of(_plain(self._dataset[row]))
            except Exception as error:
                damage = BadData(f"{self.label}, item {row}", f"{type(error).__name__}: {error}")
                if self.on_error.mode == "raise" or row == self._rows - 1:
                    raise damage from error
        raise NotFound(f"{self.label} has no item: its len() is 0.")

    def num_rows(self) -> int:
        return self._rows

    def fetch_nbytes(self, rows: int) -> int:
        return 0

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def decode(self, fetched: np.ndarray, buffers: Buffers = NEW_MEMORY) -> Block:
        kept: list[int] = []
        found: list[dict[str, Any]] = []
        for row in fetched:
            try:
                found.append(flatten(_plain(self._dataset[int(row)]))[1])
                kept.append(int(row))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                self.on_error.bad(BadData(f"{self.label}, item {row}", reason))
        schema = self.schema()
        columns = {name: _column([leaves[name] for leaves in found]) for name in schema.names}
        return Block(columns, schema.tree, lambda i: f"{self.label}, item {kept[i]}")

    def decode_into(self, fetched: np.ndarray, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        block = self.decode(fetched, buffers)
        for name, array in out.items():
            np.copyto(array, block.columns[name], casting="same_kind")

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.label}{self._rows}".encode()).hexdigest()[:32]


def _plain(item: Any) -> Any:
    """torch returns lists where others return tuples; tensors become arrays when they are stacked."""
    return tuple(item) if isinstance(item, list) else item


def _column(values: list[Any]) -> np.ndarray:
    arrays = [np.asarray(value) for value in values]
    if arrays and arrays[0].dtype.kind not in "USO" and all(a.shape == arrays[0].shape for a in arrays):
        return np.stack(arrays)
    column = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        column[place] = value if isinstance(value, (str, bytes)) else np.asarray(value)
    return column

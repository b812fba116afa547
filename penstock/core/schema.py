"""Names, dtypes and shapes of a dataset's columns, and how a sample is shown.

Covers: `Field`, `Schema`, and inferring both from values.
Does not cover: holding data (block.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import NotFound
from penstock.core.tree import Tree, flatten, tree_of

OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Field:
    """One column. `shape` is that of a single row; None marks a length that differs from row to row.

    Text is dtype object with `text=True`, bytes are dtype object with `text=False` and shape ().
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    text: bool = False

    @property
    def fixed(self) -> bool:
        """Whether every row has the same number of bytes."""
        return self.dtype != OBJECT and None not in self.shape

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row; an object or open length counts as 64, a guess that measuring replaces."""
        if not self.fixed:
            return 64
        return math.prod(n or 0 for n in self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        kind = "str" if self.text else ("bytes" if self.dtype == OBJECT and self.shape == () else str(self.dtype))
        dims = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name}: {kind}" + (f"[{dims}]" if self.shape else "")


@dataclass(frozen=True)
class Schema:
    """Columns by name, and the tree (dict, tuple, bare value) in which samples are shown."""

    fields: tuple[Field, ...]
    tree: Tree

    @classmethod
    def of(cls, *fields: Field, tree: Tree | None = None) -> Schema:
        """A schema whose samples are dicts unless `tree` says otherwise."""
        return cls(fields, tree if tree is not None else tree_of([f.name for f in fields]))

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise NotFound(f"No column {name!r}. There are: {', '.join(self.names)}.")

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    @property
    def fixed(self) -> bool:
        return all(field.fixed for field in self.fields)

    @property
    def row_nbytes(self) -> int:
        return sum(field.row_nbytes for field in self.fields)

    def __str__(self) -> str:
        return "(" + ", ".join(str(field) for field in self.fields) + ")"


def field_of(name: str, value: object) -> Field:
    """The field that a single value of a sample suggests."""
    if isinstance(value, str):
        return Field(name, OBJECT, text=True)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Field(name, OBJECT)
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return Field(name, OBJECT, array.shape, text=True)
    if array.dtype == OBJECT and array.size and isinstance(array.flat[0], str):
        return Field(name, OBJECT, array.shape, text=True)
    if array.dtype.kind == "S":
        return Field(name, OBJECT, array.shape)
    return Field(name, array.dtype, array.shape)


def schema_of(sample: object) -> Schema:
    """The schema that one sample suggests."""
    tree, leaves = flatten(sample)
    return Schema(tuple(field_of(name, value) for name, value in leaves.items()), tree)

"""Which arrays of a file or store make a sample, and names that mean the same in every reader.

Covers: `x=`, `y=` and `columns=` of the readers of named arrays (HDF5, Zarr); `features=` and `label=` beside the names
that a format has of its own.
Does not cover: columns of tables (sources/tables/blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.core.errors import InvalidInput, SchemaChanged
from penstock.core.tree import Tree, tree_of

Columns = Sequence[str] | Mapping[str, str] | None


def choose_columns(
    first: str, x: str | None, y: str | None, columns: Columns, lengths: Callable[[], Mapping[str, int]]
) -> tuple[dict[str, str], Tree]:
    """Column -> array's name, and the tree of a sample. `lengths` tells all arrays' rows, if it comes to that."""
    for given, told in ((x, "x"), (y, "y")):
        if given is not None and not isinstance(given, str):
            raise InvalidInput(
                f"{told}={given!r} must be the name of one dataset, as text. For several, use columns=[...]."
            )
    if y is not None and x is None:
        raise InvalidInput(f"y={y!r} without x: name the dataset that is the input, too.")
    if x is not None and columns is not None:
        raise InvalidInput("Give either x (and y) or columns, not both.")
    if x is not None:
        return ({"x": x}, "x") if y is None else ({"x": x, "y": y}, ("x", "y"))
    if isinstance(columns, str):
        raise InvalidInput(f"columns must be a list of datasets, such as [{columns!r}], or a dict of names for them.")
    if columns is not None and not is_name_or_names(columns.values() if isinstance(columns, Mapping) else columns):
        raise InvalidInput(f"columns must be a list of datasets' names, or a dict of names for them, not {columns!r}.")
    if columns is not None and not columns:
        raise InvalidInput("columns is empty: name at least one dataset, or leave it out for all of them.")
    if columns is not None:
        wanted = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
        return wanted, tree_of(list(wanted))
    there = lengths()
    if not there:
        raise InvalidInput(f"{first} holds no dataset with rows.")
    if len(set(there.values())) > 1:
        told = ", ".join(f"{name!r} ({rows} rows)" for name, rows in there.items())
        raise SchemaChanged(f"{first}: datasets differ in length: {told}. Choose some with x=, y= or columns=.")
    return {name: name for name in there}, tree_of(list(there))


def is_name_or_names(value: object) -> bool:
    """Whether a value is text or some texts."""
    return isinstance(value, str) or (isinstance(value, Iterable) and all(isinstance(name, str) for name in value))


def either(name: str, value: Any, other: str, also: Any, default: Any = None) -> Any:
    """The value that was given under one of two names; giving both is a mistake.

    >>> either("y", None, "label", "price")
    'price'
    """
    if also is default:
        return value
    if value is not default:
        raise InvalidInput(f"{name}= and {other}= mean the same: give one of them.")
    return also


def with_label(features: Any, label: str | Sequence[str] | None) -> Any:
    """The features to read if some are chosen by name: the label is read too, whether it is named among them or not.

    >>> with_label(["a", "b"], "y")
    {'a': None, 'b': None, 'y': None}
    """
    if features is None or label is None:
        return features
    listed = [features] if isinstance(features, str) else features
    chosen = dict(listed) if isinstance(listed, Mapping) else dict.fromkeys(listed)
    labels = [label] if isinstance(label, str) else label
    return {**chosen, **{name: None for name in labels if name not in chosen}}

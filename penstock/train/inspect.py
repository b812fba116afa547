"""The first look at the data: how it is read, which columns there are, what is learned from what.

Covers: opening any data so that rows are dicts of columns or pairs, and reading no more columns than needed.
Does not cover: recognising formats (read/recognise/formats.py), judging columns (roles.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.schema import Field
from penstock.core.source import Source
from penstock.core.tree import flatten
from penstock.dataset import Dataset
from penstock.read.recognise.formats import kind_of, open_any
from penstock.train.roles import TIME, Role, Roles, choose_target, find_roles

LOOKED_AT = 512
"""Rows by which columns are judged; of pictures a few are enough."""
PICTURES_LOOKED_AT = 16
LARGEST_SIDE = 160
"""Pictures of one size up to this are taken as they are; others are resized to USUAL_SIDE."""
USUAL_SIDE = 128

TABLES = ("csv", "tsv", "parquet", "jsonl", "ndjson", "json", "sql")
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")


@dataclass(frozen=True)
class ReaderSettings:
    """How to open the data again, for the run and for predictions. Plain values.

    `names` are the columns to read. `matrix`: all of them are numbers and are read side by side as "x".
    `pair`: the source itself gives (x, y), or x alone.
    """

    kind: str
    names: tuple[str, ...] = ()
    target: str | None = None
    matrix: bool = False
    pair: bool = False
    size: tuple[int, int] | None = None

    @property
    def y(self) -> str | None:
        """The name under which the target comes."""
        return "y" if (self.matrix or self.pair) and self.target is not None else self.target


@dataclass(frozen=True)
class Inspected:
    """What a first look found."""

    reading: ReaderSettings
    roles: Roles


def inspect_data(
    data: str,
    *,
    query: str | None,
    target: str | None,
    image_size: int | tuple[int, int] | None,
    on_error: Mapping[str, Any] | None = None,
) -> Inspected:
    """Judge the data by its schema and its first rows. `image_size` is a side, or (height, width)."""
    asked = (image_size, image_size) if isinstance(image_size, int) else image_size
    kind = kind_of(data)
    ds = open_any(data, query=query, **(on_error or {}))
    fields, pair = _labelled(ds, data, kind)
    wanted = choose_target([f.name for f in fields], target, data, pair=pair)
    picture = kind in _IMAGES or any(len(f.shape) in (2, 3) for f in fields)
    rows = [
        as_row(sample)
        for sample in islice(iter(ds.shard(0, 1).take(LOOKED_AT)), PICTURES_LOOKED_AT if picture else None)
    ]
    if not rows:
        raise InvalidInput(f"{data} has no rows.")
    roles = find_roles(fields, rows, wanted, data)
    roles = dataclasses.replace(roles, features=tuple(_sized(role, rows, asked) for role in roles.features))
    return Inspected(_reading(kind, roles, wanted, pair), _as_read(kind, roles, wanted, pair))


def check_data(data: str, *, query: str | None, target: str | None) -> None:
    """Refuse what is wrong without reading rows: nothing there, no labels, no such column.

    For the command, before it makes a folder and starts a worker. Pictures are not listed for it: they may be millions.
    """
    kind = kind_of(data)
    if kind in _IMAGES:
        if target is not None:
            raise InvalidInput(
                f"--target {target} names a column, but {data} holds pictures, whose class folders are the labels. "
                f"Leave --target out."
            )
        return
    ds = open_any(data, query=query)
    fields, pair = _labelled(ds, data, kind)
    choose_target([f.name for f in fields], target, data, pair=pair)


def open_reading(
    data: str,
    reading: ReaderSettings,
    *,
    query: str | None = None,
    with_target: bool = True,
    on_error: Mapping[str, Any] | None = None,
) -> Dataset:
    """The rows as they were judged; `with_target=False` for data that need not have the target.

    `on_error` holds the reader's options for damaged data.
    """
    options: dict[str, Any] = {}
    target = reading.target if with_target else None
    if reading.matrix:
        options = {"features": list(reading.names), "label": target, "matrix": True}
    elif reading.kind in TABLES or reading.kind in ("h5", "hdf5", "zarr", "tar", "tgz"):
        options = {"columns": [*reading.names, *([target] if target is not None else [])]}
    elif reading.kind in ("tfrecord", "tfrecords"):
        options = {"features": [*reading.names, *([target] if target is not None else [])]}
    return open_any(data, query=query, size=reading.size, **options, **(on_error or {}))


def source_of(ds: Dataset) -> Source:
    """The source that a reader's dataset stands for."""
    source: Source = next(ds._sources())
    return source


def as_row(sample: Any) -> dict[str, Any]:
    """A sample as columns by name; a pair's are x and y."""
    if isinstance(sample, Mapping):
        return {str(name): value for name, value in flatten(dict(sample))[1].items()}
    if isinstance(sample, tuple):
        return {"x": sample[0], "y": sample[1]}
    return {"x": sample}


def _labelled(ds: Dataset, data: str, kind: str) -> tuple[list[Field], bool]:
    """The columns, and whether they are those of a pair; refuses data that has inputs only."""
    if isinstance(ds.schema.tree, str):
        raise InvalidInput(f"{data} has no labels, so there is nothing to learn. {_remedy(kind)}")
    return _fields(ds)


def _fields(ds: Dataset) -> tuple[list[Field], bool]:
    schema = ds.schema
    if isinstance(schema.tree, dict):
        return list(schema), False
    if isinstance(schema.tree, tuple) and len(schema.fields) == 2:
        x, y = schema.fields
        return [dataclasses.replace(x, name="x"), dataclasses.replace(y, name="y")], True
    if isinstance(schema.tree, str):
        return [dataclasses.replace(schema.fields[0], name="x")], False
    raise InvalidInput(f"Samples of the form {schema} are not understood here; give a table or (x, y) pairs.")


def _remedy(kind: str) -> str:
    if kind in _IMAGES:
        return "Put the pictures into one folder for each class."
    return "Give a table, or files that hold inputs and labels under names."


def _sized(role: Role, rows: list[dict[str, Any]], asked: tuple[int, int] | None) -> Role:
    """A picture's shape as the model will see it."""
    if role.kind == "image bytes":
        return dataclasses.replace(role, shape=(*(asked or (USUAL_SIDE, USUAL_SIDE)), 3))
    if role.kind != "image":
        return role
    shapes = {np.shape(row[role.name]) for row in rows}
    first = next(iter(shapes))
    channels = first[2] if len(first) == 3 else 1
    if None not in role.shape:
        return dataclasses.replace(role, shape=(*role.shape[:2], channels))
    if asked is not None:
        return dataclasses.replace(role, shape=(*asked, channels))
    if len(shapes) == 1 and max(first[:2]) <= LARGEST_SIDE:
        return dataclasses.replace(role, shape=(first[0], first[1], channels))
    return dataclasses.replace(role, shape=(USUAL_SIDE, USUAL_SIDE, channels))


def _reading(kind: str, roles: Roles, target: str, pair: bool) -> ReaderSettings:
    pictures = roles.of("image")
    height_width = (pictures[0].shape[0], pictures[0].shape[1]) if pictures else None
    size = (int(height_width[0] or 0), int(height_width[1] or 0)) if height_width else None
    names = tuple(role.name for role in roles.features)
    if kind not in (*_IMAGES, "tar", "tgz"):
        size = None
    return ReaderSettings(kind, names, target, _all_numbers(kind, roles, pair), pair, size)


def _as_read(kind: str, roles: Roles, target: str, pair: bool) -> Roles:
    """The roles under the names by which the columns will come."""
    if not _all_numbers(kind, roles, pair):
        return roles
    matrix = Role("x", "number", width=len(roles.features), shape=(len(roles.features),))
    return Roles("y", (matrix,), roles.ignored)


def _all_numbers(kind: str, roles: Roles, pair: bool) -> bool:
    plain = all(r.kind == "number" and r.width == 1 and r.dtype != TIME for r in roles.features)
    return kind in TABLES and not pair and plain

"""Columns by names that a reader understands, and which of them are pictures.

Covers: what a block's columns are called in a shard, telling pixels and stored pictures from other data.
Does not cover: compressing (encode.py), Arrow types (arrow.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.block import Block, Column
from penstock.core.schema import OBJECT
from penstock.core.tree import BARE, flatten, unflatten

_LEAST_SIDE = 8
"""Smaller arrays of bytes are data, not pictures."""


def shown_columns(block: Block) -> Any:
    """A block's columns in the tree of its samples."""
    return unflatten(block.tree, lambda name: block.columns[name])


def named(shown: Any) -> dict[str, Column]:
    """Columns by name: an `(x, y)` pair becomes image or x, and label or y."""
    _, leaves = flatten(shown)
    if isinstance(shown, tuple) and len(shown) == 2:
        names = {"0": "image" if is_picture(leaves.get("0")) else "x", "1": "label" if _plain(leaves.get("1")) else "y"}
        return {names.get(name, name): column for name, column in leaves.items()}
    if list(leaves) == [BARE] and is_picture(leaves[BARE]):
        return {"image": leaves[BARE]}
    return leaves


def is_pixels(value: Any) -> bool:
    """Whether one value is an 8-bit image: height x width, or with 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return False
    return min(value.shape[:2]) >= _LEAST_SIDE and (value.ndim == 2 or value.shape[2] in (1, 3, 4))


def stored_kind(data: Any) -> str | None:
    """The suffix of a picture's bytes, by how they begin; None for any other bytes."""
    if not isinstance(data, bytes):
        return None
    if data.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if data.startswith(b"\x89PNG\r\n"):
        return "png"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def has_pixels(column: Any) -> bool:
    """Whether a column holds images that have to be compressed."""
    if not isinstance(column, np.ndarray) or not len(column):
        return False
    return is_pixels(_first(column) if column.dtype == OBJECT else column[0])


def has_stored(column: Any) -> bool:
    """Whether a column holds pictures as files hold them."""
    if isinstance(column, pa.Array):
        bytes_like = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        return bytes_like and len(column) > 0 and stored_kind(column[0].as_py()) is not None
    found = isinstance(column, np.ndarray) and column.dtype == OBJECT and column.ndim == 1
    return found and stored_kind(_first(column)) is not None


def is_picture(column: Any) -> bool:
    """Whether a column's values are pictures, as pixels or as stored bytes."""
    return has_pixels(column) or has_stored(column)


def _first(column: np.ndarray) -> Any:
    return next((value for value in column.flat if value is not None), None)


def _plain(column: Any) -> bool:
    """One number a row."""
    if isinstance(column, pa.Array):
        return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    return (
        isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype != OBJECT and column.dtype.kind in "iufb"
    )

"""Lists of open length whose elements are of open length again, or records: read level by level from the heap.

Covers: which types can be read so, their columns, their values as Arrow lists.
Does not cover: lists of plain numbers and text (source.py), the heap itself (heap.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_numbers import arrow_of
from penstock.core.schema import OBJECT, Field
from penstock.memory.giant import refuse_giant
from penstock.sources.hdf5.heap import RECORD, lengths, read_values

ROW_NBYTES = 4096
"""What a row is taken for before it is read: only its records tell, level by level."""

Values = tuple[pa.Array, dict[int, str]]
"""Values by row, and the rows that cannot be read with the reasons."""


def inner_of(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The type of the elements of a list of open length; None for other types."""
    found = dtype.metadata.get("vlen") if dtype.metadata else None
    return found if isinstance(found, np.dtype) else None


def is_nested(dtype: np.dtype[Any]) -> bool:
    """Whether elements are not plain numbers."""
    inner = inner_of(dtype)
    return inner is not None and (inner == OBJECT or inner.names is not None)


def is_known(kind: Any, dtype: np.dtype[Any], is_alike: Callable[[Any, np.dtype[Any]], bool]) -> bool:
    """Whether values of this type can be read here; `is_alike` says whether the file's bytes are NumPy's."""
    inner = inner_of(dtype)
    if inner is None:
        return _is_text(dtype)
    base = kind.get_super()
    if inner == OBJECT:
        return is_known(base, inner, is_alike)
    if inner.names is None:
        return inner.kind in "biuf" and is_alike(base, inner)
    members = {base.get_member_name(i).decode(): i for i in range(base.get_nmembers())}
    places = {name: place for name, (_, place, *_) in (inner.fields or {}).items()}
    return base.get_size() == inner.itemsize and all(
        inner[name].kind in "biuf"
        and base.get_member_offset(members[name]) == place
        and is_alike(base.get_member_type(members[name]), inner[name])
        for name, place in places.items()
    )


def _is_text(dtype: np.dtype[Any]) -> bool:
    return dtype == OBJECT and dtype.metadata is not None and dtype.metadata.get("vlen") in (str, bytes)


def item_nbytes(dtype: np.dtype[Any]) -> int:
    """Bytes of one element in the heap."""
    inner = inner_of(dtype)
    return 1 if inner is None else RECORD.itemsize if inner == OBJECT else inner.itemsize


def field_of(column: str, dtype: np.dtype[Any]) -> Field:
    """The column that such lists become."""
    shape: tuple[int | None, ...] = ()
    leaf: np.dtype[Any] | None = dtype
    while leaf is not None and (inner := inner_of(leaf)) is not None:
        shape, leaf = (*shape, None), inner
    plain = leaf is not None and leaf != OBJECT and leaf.names is None
    kind = leaf.newbyteorder("=") if plain and leaf is not None else OBJECT
    return Field(column, kind, shape, text=leaf == OBJECT)


def read_nested(path: str, records: np.ndarray, dtype: np.dtype[Any]) -> Values:
    """The values that records point to."""
    item, inner = item_nbytes(dtype), inner_of(dtype)
    refuse_giant(int(lengths(records, item).sum()), who=f"{path}: a stretch of lists of open length")
    values, bad = read_values(path, records, item)
    if inner is None:
        texts = [None if value is None else value.partition(b"\0")[0] for value in values]
        return _text(texts, bad)
    ends = np.cumsum([0, *(len(value or b"") // item for value in values)])
    joined = b"".join(value or b"" for value in values)
    if inner == OBJECT:
        child, wrong = read_nested(path, np.frombuffer(joined, RECORD), inner)
        for place, why in wrong.items():
            bad.setdefault(int(np.searchsorted(ends, place, side="right")) - 1, why)
    else:
        child = _plain(np.frombuffer(joined, inner))
    offsets = pa.Array.from_buffers(pa.int64(), len(ends), [None, pa.py_buffer(np.asarray(ends, np.int64))])
    return pa.LargeListArray.from_arrays(offsets, child), bad


def _plain(values: np.ndarray) -> pa.Array:
    if values.dtype.names is None:
        return _numbers(values)
    return pa.StructArray.from_arrays([_numbers(values[name]) for name in values.dtype.names], values.dtype.names)


def _numbers(values: np.ndarray) -> pa.Array:
    return pa.array(values) if values.dtype == np.bool_ else arrow_of(values.astype(values.dtype.newbyteorder("=")))


def _text(texts: list[bytes | None], bad: dict[int, str]) -> Values:
    found: list[str | None] = []
    for row, text in enumerate(texts):
        try:
            found.append(None if text is None else text.decode("utf-8"))
        except UnicodeDecodeError as error:
            bad[row] = f"text is not UTF-8 ({error.reason} at its byte {error.start})"
            found.append("")
    return pa.array(found, pa.string()), bad

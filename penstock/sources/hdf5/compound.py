"""Values of open length (text, lists) inside of compound values: where their heap records lie.

Covers: the layout of a compound value in the file, and the dtype that picks one field's records out of it.
Does not cover: reading the values that records point to (heap.py).

The library tells a type as it lies in memory, where open text is a pointer of 8 bytes; in the file its record has 16.
Fields behind it are moved by as much.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.sources.hdf5.heap import RECORD

VALUE = "value"
"""The field that is picked out."""


def records_inside(node: Any, member: tuple[str, ...]) -> np.dtype[Any] | None:
    """The records of one field, as a dtype with the size of the whole compound value; None if it is not known."""
    kind, offset = node.id.get_type(), 0
    nbytes = _stored_nbytes(kind)
    for name in member:
        places = _places(kind)
        if places is None or name not in places:
            return None
        step, kind = places[name]
        offset += step
    if nbytes is None or _stored_nbytes(kind) != RECORD.itemsize:
        return None
    # What the file really holds must agree: whole values, no rest.
    stored = node.id.get_storage_size()
    values = math.prod(node.chunks) if node.chunks else math.prod(node.shape)
    plain = not node.id.get_create_plist().get_nfilters()
    if plain and stored and (stored % (values * nbytes) if node.chunks else stored != values * nbytes):
        return None
    return np.dtype({"names": [VALUE], "formats": [RECORD], "offsets": [offset], "itemsize": nbytes})


def _places(kind: Any) -> dict[str, tuple[int, Any]] | None:
    """Offset in the file and type of each field of a compound type."""
    if not hasattr(kind, "get_nmembers") or not hasattr(kind, "get_member_offset"):
        return None
    order = sorted(range(kind.get_nmembers()), key=kind.get_member_offset)
    fields = [(kind.get_member_offset(i), kind.get_member_name(i).decode(), kind.get_member_type(i)) for i in order]
    found, moved = dict[str, tuple[int, Any]](), 0
    for offset, name, inner in fields:
        nbytes = _stored_nbytes(inner)
        if nbytes is None:
            return None
        found[name] = offset + moved, inner
        moved += nbytes - inner.get_size()
    return found


def _stored_nbytes(kind: Any) -> int | None:
    """Bytes of a value in the file; None for types whose size there is not known."""
    import h5py.h5t as h5t

    if isinstance(kind, h5t.TypeVlenID) or (isinstance(kind, h5t.TypeStringID) and kind.is_variable_str()):
        return RECORD.itemsize
    if isinstance(kind, h5t.TypeReferenceID):
        return None
    if isinstance(kind, h5t.TypeArrayID):
        inner = _stored_nbytes(kind.get_super())
        return None if inner is None else int(inner * math.prod(kind.get_array_dims()))
    if isinstance(kind, h5t.TypeCompoundID):
        inside = [kind.get_member_type(i) for i in range(kind.get_nmembers())]
        sizes = [_stored_nbytes(inner) for inner in inside]
        if None in sizes:
            return None
        moved = sum(size - inner.get_size() for size, inner in zip(sizes, inside, strict=True) if size is not None)
        return int(kind.get_size() + moved)
    return int(kind.get_size())

"""Values of open length in HDF5 files, read from the file's global heap without the library.

Covers: records (length, heap address, index), heap collections, text and lists out of them.
Does not cover: where the records lie (chunks.py).

The library follows damaged heaps without end (an object of size 0 makes it loop for ever with the lock held), so that a
flipped bit would hang the process. Here every step is checked against the collection's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from penstock.sources.storage import files as storage

RECORD = np.dtype(
    {"names": ["n", "address", "index"], "formats": ["<u4", "<u8", "<u4"], "offsets": [0, 4, 12], "itemsize": 16}
)
COLLECTION_NBYTES = 4096
"""The usual size of a heap collection: one read brings most of them whole."""

_HEADER = struct.Struct("<4sBxxxQ")
_OBJECT = struct.Struct("<HHxxxxQ")
_NOWHERE = (0, 2**64 - 1)


def lengths(records: np.ndarray, item: int) -> np.ndarray:
    """Bytes that each value claims to have."""
    return records.view(RECORD)["n"].astype(np.int64) * item


def read_values(path: str, records: np.ndarray, item: int) -> tuple[list[bytes | None], dict[int, str]]:
    """The values' bytes, and for those that cannot be read, why."""
    found = records.view(RECORD)
    counts, addresses, indexes = found["n"], found["address"], found["index"]
    values: list[bytes | None] = [b""] * len(found)
    bad: dict[int, str] = {}
    wanted = np.flatnonzero((counts > 0) & ~np.isin(addresses, _NOWHERE))
    if not len(wanted):
        return values, bad
    order = wanted[np.argsort(addresses[wanted], kind="stable")]
    starts = np.flatnonzero(np.diff(addresses[order], prepend=np.uint64(0)))
    groups = np.split(order, starts[1:])
    allowance = storage.file_size(path)  # each value is stored once, so all together cannot exceed the file
    for rows, collection in zip(groups, _collections(path, [int(addresses[g[0]]) for g in groups]), strict=True):
        places = collection if isinstance(collection, str) else _places(collection)
        for row in rows.tolist():
            nbytes = int(counts[row]) * item
            spot = None if isinstance(places, str) else places.get(int(indexes[row]))
            if spot is None or isinstance(collection, str) or nbytes > spot[1] or nbytes > allowance:
                values[row] = None
                bad[row] = (
                    places if isinstance(places, str) else f"heap object {indexes[row]} does not hold {nbytes} bytes"
                )
                continue
            allowance -= nbytes
            values[row] = collection[spot[0] : spot[0] + nbytes]
    return values, bad


def _collections(path: str, addresses: list[int]) -> Iterator[bytes | str]:
    """Each collection's bytes, or what is wrong with it; a few hundred are asked for at once."""
    end = storage.file_size(path)
    for first in range(0, len(addresses), 256):
        some = addresses[first : first + 256]
        inside = [a for a in some if a < end]
        heads = (
            dict(zip(inside, storage.read_ranges(path, [(a, COLLECTION_NBYTES) for a in inside]), strict=True))
            if inside
            else {}
        )
        for address in some:
            head = heads.get(address, b"")
            if len(head) < _HEADER.size or head[:4] != b"GCOL":
                yield f"there is no heap at byte {address}"
                continue
            nbytes = _HEADER.unpack_from(head)[2]
            if nbytes > end - address:
                yield f"the heap at byte {address} claims {nbytes} bytes, more than the file has"
            elif nbytes <= len(head):
                yield head[:nbytes]
            else:
                yield storage.read_range(path, address, nbytes)


def _places(collection: bytes) -> dict[int, tuple[int, int]]:
    """Index -> (offset, size) of the objects in a collection; stops at free space and at nonsense."""
    places: dict[int, tuple[int, int]] = {}
    place, end = _HEADER.size, len(collection)
    while place + _OBJECT.size <= end:
        index, _, nbytes = _OBJECT.unpack_from(collection, place)
        place += _OBJECT.size
        if index == 0 or place + nbytes > end:
            break
        places[index] = (place, nbytes)
        place += -(-nbytes // 8) * 8
    return places

"""Guess the features of a dataset from its first records.

Covers: reading the outline of Example and SequenceExample records (names, kinds, numbers of values), and the features
that a set of outlines suggests.
Does not cover: features as users give them (features.py), parsing in bulk (columns.py).

This is plain Python: it sees a few records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.core.errors import BadData, SchemaChanged
from penstock.core.schema import OBJECT
from penstock.sources.tfrecord.features import BYTES, FLOAT, INT, KIND_NAMES, Feature, Shape

DTYPES = {BYTES: OBJECT, FLOAT: np.dtype(np.float32), INT: np.dtype(np.int64)}


@dataclass
class Outline:
    """The features of one record: kind and number of values; for feature lists, the numbers of all steps."""

    features: dict[str, tuple[int, int]] = field(default_factory=dict)
    lists: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    sequence: bool = False


def outline_of(record: bytes, where: str) -> Outline:
    """The outline of one record, which may be damaged or no Example at all."""
    outline = Outline()
    try:
        for number, wire, start, end in _fields(record, 0, len(record)):
            if wire != 2 or number not in (1, 2):
                continue
            outline.sequence |= number == 2
            for name, first, last in _entries(record, start, end):
                if number == 1:
                    kind, count = _feature(record, first, last)
                    if kind:
                        outline.features[name] = kind, count
                else:
                    outline.lists[name] = _steps(record, first, last)
    except (IndexError, ValueError) as error:
        raise BadData(
            where, f"the record is not a tf.train.Example ({error}); parse=None yields raw records"
        ) from error
    return outline


def infer(outlines: Sequence[Outline]) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """The features and feature lists that the outlines suggest.

    A feature with the same number of values in every record is an array (one value: a scalar); any other is a list,
    which may be missing.
    """
    features: dict[str, Feature] = {}
    lists: dict[str, Feature] = {}
    for name in sorted({name for o in outlines for name in o.features}):
        seen = [o.features[name] for o in outlines if name in o.features]
        kind = _kind(name, {k for k, _ in seen})
        counts = {count for _, count in seen}
        whole = len(seen) == len(outlines) and len(counts) == 1 and counts != {0}
        shape: Shape = (None,) if not whole else () if counts == {1} else (counts.pop(),)
        features[name] = Feature(name, kind, DTYPES[kind], shape, optional=not whole)
    for name in sorted({name for o in outlines for name in o.lists}):
        found = [o.lists[name] for o in outlines if name in o.lists]
        kind = _kind(name, {k for k, _ in found if k} or {FLOAT})
        sizes = {n for _, counts_of in found for n in counts_of}
        inner: Shape = () if sizes == {1} else (sizes.pop(),) if len(sizes) == 1 and sizes != {0} else (None,)
        optional = len(found) < len(outlines)
        lists[name] = Feature(name, kind, DTYPES[kind], (None, *inner), optional=optional, listed=True)
    return features, lists


def _kind(name: str, kinds: set[int]) -> int:
    if len(kinds) > 1:
        found = " and ".join(KIND_NAMES[k] for k in sorted(kinds))
        raise SchemaChanged(f"Feature {name!r} holds {found} in different records. Leave it out of features=.")
    return kinds.pop()


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise ValueError("a number runs past its message")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and where the contents lie."""
    while place < end:
        tag, place = _varint(data, place, end)
        wire = tag & 7
        start = place
        if wire == 0:
            _, place = _varint(data, place, end)
        elif wire == 2:
            length, start = _varint(data, place, end)
            place = start + length
        elif wire in (1, 5):
            place += 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of unknown type {wire}")
        if place > end:
            raise ValueError("a field runs past its message")
        yield tag >> 3, wire, start, place


def _entries(data: bytes, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The entries of a map: key, and where the value lies."""
    for number, wire, first, last in _fields(data, start, end):
        if number != 1 or wire != 2:
            continue
        key, value = "", (last, last)
        for inner, kind, at, after in _fields(data, first, last):
            if inner == 1 and kind == 2:
                key = data[at:after].decode("utf-8", "surrogateescape")
            elif inner == 2 and kind == 2:
                value = (at, after)
        yield key, *value


def _feature(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Kind (0 if unset) and number of values of a Feature."""
    kind, count = 0, 0
    for number, wire, first, last in _fields(data, start, end):
        if wire == 2 and number in (BYTES, FLOAT, INT):
            kind, count = number, _count(data, first, last, number)
    return kind, count


def _count(data: bytes, start: int, end: int, kind: int) -> int:
    total = 0
    for number, wire, first, last in _fields(data, start, end):
        if number != 1:
            continue
        if wire != 2 or kind == BYTES:
            total += 1
        elif kind == FLOAT:
            total += (last - first) // 4
        else:
            # Each varint ends with the only byte of its own that is below 128.
            total += int(np.count_nonzero(np.frombuffer(data, np.uint8, last - first, first) < 128))
    return total


def _steps(data: bytes, start: int, end: int) -> tuple[int, list[int]]:
    """Kind and numbers of values of the steps of a FeatureList."""
    kind, counts = 0, []
    for number, wire, first, last in _fields(data, start, end):
        if number == 1 and wire == 2:
            found, count = _feature(data, first, last)
            kind = kind or found
            counts.append(count)
    return kind, counts

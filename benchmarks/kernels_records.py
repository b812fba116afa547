"""Kernels of TFRecord and Example next to their last Numba versions; kernels.py measures the pairs.

Covers: CRC-32C, frames, Examples of scalars and of bytes, lists, writing. Both results of a pair are compared first.
Does not cover: readers (tfrecord.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Pair = tuple[Callable[[], Any], Callable[[], Any]]
Columns = Mapping[str, np.ndarray]

BYTES, FLOAT, INTEGER = 1, 2, 3
"""Kinds of feature, by their field numbers in Feature."""


def scalars(rows: int, features: int = 40) -> Columns:
    """As many floats as `features`, and an integer."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {f"f{k}": rng.standard_normal(rows).astype(np.float32) for k in range(features)}
    return {**found, "y": rng.integers(0, 1000, rows)}


def stretch(records: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Framed records as one stretch of a file, where each begins, and how long its record is."""
    from penstock.native.tfrecord import FRAME

    sizes = np.array([len(record) for record in records], np.int64)
    return np.frombuffer(b"".join(records), np.uint8), np.cumsum(sizes) - sizes, sizes - FRAME


def framed(columns: Columns) -> list[bytes]:
    """Every row as a framed Example."""
    from penstock.native.example.write import encode_block

    made = encode_block(columns)
    assert made is not None
    return made


def crc_pair() -> Pair:
    """8 MB."""
    from oldpenstock.sources import crc32c as numba_crc

    from penstock.native.crc32c import crc32c

    data = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
    old_data = numba_crc.byte_array(data)
    assert crc32c(data) == numba_crc.crc32c(old_data)
    return lambda: crc32c(data), lambda: numba_crc.crc32c(old_data)


def frames_pair(records: Sequence[bytes]) -> Pair:
    """Find all frames, with the checksums of their lengths."""
    from oldpenstock.sources import tfrecord_kernel as numba_tfrecord
    from oldpenstock.sources.crc32c import byte_array

    from penstock.native import tfrecord

    buf, offsets, lengths = stretch(records)
    room = np.empty(len(records) + 1, np.int64), np.empty(len(records) + 1, np.int64)
    old_buf, size, longest = byte_array(buf), len(buf), tfrecord.UNKNOWN

    def old() -> Any:
        return numba_tfrecord.walk(old_buf, 0, size, True, longest, *room)

    def new() -> Any:
        return tfrecord.walk(buf, size, True, longest, *room)

    for work in (old, new):
        assert tuple(work()) == (len(records), size, 0)
        assert all(np.array_equal(a[:-1], b) for a, b in zip(room, (offsets, lengths)))
    return new, old


def check_pair(records: Sequence[bytes]) -> Pair:
    """The checksums of all records."""
    from oldpenstock.sources import tfrecord_kernel as numba_tfrecord
    from oldpenstock.sources.crc32c import byte_array

    from penstock.native import tfrecord

    buf, offsets, lengths = stretch(records)
    old_buf, codes = byte_array(buf), np.empty(len(records), np.int64)
    return (
        lambda: tfrecord.check_records(buf, offsets, lengths, True),
        lambda: numba_tfrecord.check_records(old_buf, offsets, lengths, True, codes),
    )


def parse_pair(records: Sequence[bytes], specs: Mapping[str, int]) -> Pair:
    """Records with their checksums into columns: one number a row, or where the bytes of a feature lie.

    `specs` gives the kind of each feature; room for the output is made by both, at each call, as their readers did.
    """
    from oldpenstock.sources import tfrecord_kernel as numba_tfrecord
    from oldpenstock.sources.crc32c import byte_array

    from penstock.native.example import read as example

    buf, offsets, lengths = stretch(records)
    rows, at = len(records), {BYTES: 0, FLOAT: 0, INTEGER: 0}
    table = np.zeros((len(specs), example.SPEC), np.int64)
    for line, kind in zip(table, specs.values()):
        line[example.KIND], line[example.COUNT] = kind, -1 if kind == BYTES else 1
        line[example.BASE], line[example.STRIDE] = at[kind], 0 if kind == BYTES else 1
        at[kind] += 1 if kind == BYTES else rows
    names = example.names_of([name.encode() for name in specs])
    plan = example.Plan(names, table, True, False)
    old_plan = numba_tfrecord.Plan(names.joined, names.starts, names.table, table, True, False)
    old_buf = byte_array(buf)
    room = {"floats": at[FLOAT], "ints": at[INTEGER], "spans": at[BYTES]}

    def old() -> Any:
        out = numba_tfrecord.output(rows, len(specs), **room)
        assert numba_tfrecord.parse(old_buf, offsets, lengths, old_plan, out) == 0
        return out

    def new() -> Any:
        out = example.output(rows, **room)
        assert example.parse(buf, offsets, lengths, plan, out) == 0
        return out

    one, other = new(), old()
    for name in ("floats", "ints", "spans", "codes"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    return new, old


def lists_pair(floats: bool) -> Pair:
    """4,000 lists of 1 to 200 values: counted, then written one after the other."""
    from oldpenstock.sources import list_kernel as numba_lists
    from oldpenstock.sources.crc32c import byte_array

    from penstock.core.wire_format import delimited, varint
    from penstock.native.example import lists

    rng = np.random.default_rng(0)
    packed = []
    for count in rng.integers(1, 200, 4000):
        values = rng.standard_normal(count).astype("<f4").tobytes() if floats else b""
        packed.append(delimited(1, values or b"".join(varint(int(v)) for v in rng.integers(0, 1 << 20, count))))
    sizes = np.array([len(one) for one in packed], np.int64)
    spans, buf = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1), np.frombuffer(b"".join(packed), np.uint8)
    old_buf, kind = byte_array(buf), FLOAT if floats else INTEGER

    def old() -> Any:
        counts = np.empty(len(spans), np.int64)
        assert numba_lists.count_values(old_buf, spans, kind, counts) == 0
        offsets = np.concatenate([[0], np.cumsum(counts)])
        out = np.empty(offsets[-1], np.float32 if floats else np.int64)
        (numba_lists.write_floats if floats else numba_lists.write_ints)(old_buf, spans, offsets, out)
        return out

    def new() -> Any:
        counts = lists.count_values(buf, spans, kind)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return (lists.write_floats if floats else lists.write_ints)(buf, spans, offsets)

    assert np.array_equal(new(), old())
    return new, old


def write_pair(columns: Columns) -> Pair:
    """Rows to framed records, each a bytes object."""
    from oldpenstock.write.example_kernel import encode_block as numba_encode

    from penstock.native.example.write import encode_block

    assert encode_block(columns) == numba_encode(columns)
    return lambda: encode_block(columns), lambda: numba_encode(columns)


def swapped(rows: int) -> list[bytes]:
    """Records whose features come in one order in even rows and in the other in odd ones."""
    there = framed(scalars(rows))
    back = framed(dict(reversed(list(scalars(rows).items()))))
    return [(there, back)[row % 2][row] for row in range(rows)]


def pairs() -> dict[str, Callable[[], Pair]]:
    """What is measured, by name."""
    kinds = {**{f"f{k}": FLOAT for k in range(40)}, "y": INTEGER}
    rng = np.random.default_rng(0)
    pictures = {"picture": np.array([rng.bytes(60_000) for _ in range(200)], object), "y": np.arange(200)}
    return {
        "CRC-32C of 8 MB": crc_pair,
        "TFRecord frames of 4 MB, 47 bytes each": lambda: frames_pair(framed(scalars(90_000, 1))),
        "TFRecord frames of 4 MB, 700 bytes each": lambda: frames_pair(framed(scalars(6_000))),
        "TFRecord checksums, 700 bytes each": lambda: check_pair(framed(scalars(6000))),
        "Example, 41 scalars, with checksums": lambda: parse_pair(framed(scalars(4000)), kinds),
        "Example, 41 scalars in changing order": lambda: parse_pair(swapped(4000), kinds),
        "Example, 60 KB of bytes, with checksums": lambda: parse_pair(
            framed(pictures), {"picture": BYTES, "y": INTEGER}
        ),
        "lists of floats": lambda: lists_pair(True),
        "lists of integers": lambda: lists_pair(False),
        "writing Examples of 41 scalars": lambda: write_pair(scalars(4000)),
        "writing Examples of 2 scalars": lambda: write_pair(scalars(4000, 1)),
        "writing Examples of 60 KB": lambda: write_pair(pictures),
    }


def call_cost() -> Pair:
    """One small frame: almost nothing but the call."""
    return frames_pair(framed(scalars(1, 1)))

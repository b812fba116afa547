"""tf.train.Example and SequenceExample records straight into arrays.

Covers: what to take out of a record (`Plan`), where it goes (`Output`), parsing in bulk (native/example.c).
Does not cover: values of features of varying length (lists.py), what features become (sources/tfrecord/).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

KIND, COUNT, BASE, STRIDE, AS_FLOAT, OPTIONAL, LISTED, SPEC = range(8)
"""Columns of `Plan.specs`, and their number. COUNT is -1 where values are only located: BASE is then their span."""

_table = Kernel("example_table", INT32, ADDRESS, INT64, ADDRESS, INT64, ADDRESS, INT64)
_notes_nbytes = Kernel("example_notes_nbytes", INT64)
_parse = Kernel("example_parse", INT64, ADDRESS, INT64, ADDRESS, ADDRESS, ADDRESS, ADDRESS)


class _Plan(ctypes.Structure):
    """`plan` of native/example.c."""

    _fields_ = [
        *((name, ADDRESS) for name in ("names", "starts", "table", "specs")),
        *((name, INT64) for name in ("names_len", "slots", "count")),
        *((name, INT32) for name in ("check", "sequence")),
    ]


class _Output(ctypes.Structure):
    """`output` of native/example.c."""

    _fields_ = [
        *((name, ADDRESS) for name in ("floats", "ints", "spans", "codes", "features", "seen", "notes")),
        *((name, INT64) for name in ("floats_len", "ints_len", "spans_len", "row_spans", "rows", "notes_nbytes")),
    ]


@dataclass(frozen=True)
class Names:
    """Feature names as bytes one after the other, where each starts, and a hash table over them."""

    joined: np.ndarray
    starts: np.ndarray
    table: np.ndarray


def names_of(names: Sequence[bytes]) -> Names:
    """The table that finds a feature by its name."""
    joined, starts = np.frombuffer(b"".join(names), np.uint8), np.cumsum([0, *map(len, names)], dtype=np.int64)
    table = np.empty(1 << (2 * len(names)).bit_length(), np.int64)
    _table(address(joined), len(joined), address(starts), len(names), address(table), len(table))
    return Names(joined, starts, table)


@dataclass(frozen=True)
class Plan:
    """What to take out of each record: `specs` (int64) has a row of numbers for each name."""

    names: Names
    specs: np.ndarray
    check: bool
    sequence: bool


@dataclass(frozen=True)
class Output:
    """Flat floats and integers, (row, span, start and length) of what is located; a code and a feature for each row."""

    floats: np.ndarray
    ints: np.ndarray
    spans: np.ndarray
    codes: np.ndarray
    features: np.ndarray
    """The feature at fault."""


def output(rows: int, *, floats: int, ints: int, spans: int) -> Output:
    """Room for so many rows. Floats and integers are zero and spans are (-1, 0): missing, until something is put."""
    located = np.zeros((rows, spans, 2), np.int64)
    located[..., 0] = -1
    codes, features = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    return Output(np.zeros(floats, np.float32), np.zeros(ints, np.int64), located, codes, features)


@functools.cache
def _scratch_nbytes() -> int:
    return int(_notes_nbytes())


def parse(buf: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, plan: Plan, out: Output) -> int:
    """Parse the frames at `offsets` into the rows of `out`; the number of rows whose code is not OK."""
    offsets, lengths = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(lengths, np.int64)
    names, specs, rows = plan.names, np.ascontiguousarray(plan.specs, np.int64), len(offsets)
    seen, notes = np.empty(len(specs), np.int64), np.empty(_scratch_nbytes(), np.uint8)
    if specs.shape != (len(names.starts) - 1, SPEC) or rows != len(lengths) or rows > len(out.codes):
        raise InvalidInput(f"{rows} rows and specs {specs.shape} do not fit {len(out.codes)} rows of output.")
    wanted = _Plan(
        address(names.joined), address(names.starts), address(names.table), address(specs),
        len(names.joined), len(names.table), len(specs), plan.check, plan.sequence,
    )  # fmt: skip
    places = _Output(
        *(address(a) for a in (out.floats, out.ints, out.spans, out.codes, out.features, seen, notes)),
        len(out.floats), len(out.ints), out.spans.size, out.spans.shape[1], rows, notes.nbytes,
    )  # fmt: skip
    where = address(buf), len(buf), address(offsets), address(lengths)
    found = int(_parse(*where, ctypes.addressof(wanted), ctypes.addressof(places)))
    if found < 0:
        raise InvalidInput("The features do not fit the arrays that they are to be parsed into.")
    return found

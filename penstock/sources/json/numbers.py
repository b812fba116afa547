"""JSON lines of plain numbers, straight into row-major arrays.

Covers: when the kernel (native/json.py) can read a file's objects, and calling it.
Does not cover: everything else that JSON can hold (parse.py).

It reads objects whose keys are those of the samples in the same order, each with a plain number, and hands a stretch to
PyArrow as soon as one is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.source import NEW_MEMORY, Buffers
from penstock.native import json as kernel
from penstock.native.csv import count_byte
from penstock.sources.csv.numbers import FLOAT, INTEGER, MATRIX, SKIP, Layout, Parsed, room_for
from penstock.sources.tables.blocks import Spec, TableShape


@dataclass(frozen=True)
class Objects:
    """What the objects of a file look like: where each value goes, and the text of the keys with their ends."""

    layout: Layout
    keys: bytes
    ends: tuple[int, ...]


def objects_of(fields: Sequence[pa.Field], shape: TableShape, specs: Sequence[Spec]) -> Objects | None:
    """How the kernel reads these fields, or None if they are not all plain numbers under plain names."""
    if shape.fill is not None or shape.categories or not fields:
        return None
    for field in fields:
        plain = field.name.isascii() and field.name.isprintable() and not set('"\\') & set(field.name)
        if not plain or not (field.type == pa.float64() or field.type == pa.int64()):
            return None
    names = [field.name for field in fields]
    types = {field.name: field.type for field in fields}
    kinds, slots = [SKIP] * len(names), [0] * len(names)
    counts = {MATRIX: 0, FLOAT: 0, INTEGER: 0}
    dtype: Any = np.dtype(np.float32)
    for spec in specs:
        if spec.matrix and (counts[MATRIX] or str(spec.dtype) not in ("float32", "float64")):
            return None
        dtype = spec.dtype if spec.matrix else dtype
        for name in spec.sources:
            if name not in types or (not spec.matrix and spec.dtype is not None):
                return None
            at = names.index(name)
            if kinds[at] != SKIP:
                return None
            kind = MATRIX if spec.matrix else FLOAT if pt.is_floating(types[name]) else INTEGER
            kinds[at], slots[at] = kind, counts[kind]
            counts[kind] += 1
    keys = [f'"{name}":'.encode() for name in names]
    ends = tuple(int(e) for e in np.cumsum([0, *map(len, keys)]))
    return Objects(Layout(tuple(kinds), tuple(slots), ",", (), np.dtype(dtype)), b"".join(keys), ends)


def parse(text: memoryview, objects: Objects, buffers: Buffers = NEW_MEMORY) -> Parsed | None:
    """Parse whole lines, or None when they are not for the kernel."""
    layout, data = objects.layout, np.frombuffer(text, np.uint8)
    if not len(data):
        return None
    out = room_for(count_byte(data, ord("\n")) + 1, layout, buffers)
    plan = np.array([layout.kinds, layout.slots], np.int64)
    why, rows = kernel.read_rows(data, objects.keys, np.array(objects.ends[1:], np.int64), plan, out)
    return None if why != kernel.DONE else Parsed(out.matrix[:rows], out.floats[:, :rows], out.integers[:, :rows])

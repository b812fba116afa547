"""JSON lines of plain numbers, straight into row-major arrays.

Covers: when the compiled kernel can read a file's objects, and calling it; compiling it in the background.
Does not cover: everything else that JSON can hold (json_parse.py), the compiled code (json_numba.py).

It reads objects whose keys are those of the samples in the same order, and hands back a stretch as soon as one is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.memory.buffers import empty
from penstock.memory.limits import current_limit
from penstock.sources.compile_background import Kernel
from penstock.sources.csv_kernel import FLOAT, INTEGER, MATRIX, SKIP, Layout, Parsed
from penstock.sources.json_parse import count_newlines
from penstock.sources.table import Spec, TableShape

ROOMY_NBYTES = 600_000_000
"""A limit below which PyArrow reads: the compiler alone would take a good part of it."""


class JsonKernel(Kernel):
    """The compiled parser of this process."""

    def make(self, dtype: np.dtype[Any]) -> Any:
        from penstock.sources.json_numba import compiled

        return compiled(dtype)


kernel = JsonKernel()
"""One per process: compiled code is shared by all sources."""


@dataclass(frozen=True)
class Objects:
    """What the objects of a file look like: where each value goes, and the text of the keys with their ends."""

    layout: Layout
    keys: bytes
    ends: tuple[int, ...]


def objects_of(fields: Sequence[pa.Field], shape: TableShape, specs: Sequence[Spec]) -> Objects | None:
    """How the kernel reads these fields, or None if they are not all plain numbers under plain names."""
    if shape.fill is not None or shape.categories or not fields or current_limit().nbytes < ROOMY_NBYTES:
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


def parse(text: memoryview, objects: Objects, wait: bool = False) -> Parsed | None:
    """Parse whole lines, or None when the kernel is not compiled yet or the lines are not for it."""
    layout = objects.layout
    run = kernel.get(layout.dtype, wait)
    data = np.frombuffer(text, np.uint8)
    if run is None or not len(data):
        return None
    rows = count_newlines(text) + 1
    matrix = empty((rows, layout.count(MATRIX)), layout.dtype)
    floats = empty((layout.count(FLOAT), rows), np.float64)
    integers = empty((layout.count(INTEGER), rows), np.int64)
    keys = np.frombuffer(objects.keys, np.uint8), np.array(objects.ends, np.int64)
    plan = np.array([layout.kinds, layout.slots], np.int64)
    done = int(run(data, keys, plan, (matrix, floats, integers)))
    return None if done < 0 else Parsed(matrix[:done], floats[:, :done], integers[:, :done])

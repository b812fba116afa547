"""Numbers from text: a stretch of CSV lines straight into row-major arrays.

Covers: calling the kernel (native/csv.py), and the cells that it leaves open.
Does not cover: text, dates, quotes, damaged lines, which PyArrow reads (arrow.py).

Who reads what is a rule. The kernel reads a stretch of lines if no byte of it is a quote and every wanted column is a
float or an integer (source.py). It hands the whole stretch to PyArrow if a line has more or fewer cells than columns,
or a cell is neither a number nor a word for a missing value. So the same file is always read in the same way.

Every number is correctly rounded. Short numbers are one exact division, up to 19 digits the Eisel-Lemire product;
what that cannot settle (more digits, subnormals, words such as inf) is listed, and PyArrow casts it from its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_numbers import numbers
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.native import csv as kernel
from penstock.native.csv import FLOAT, INTEGER, MATRIX, SKIP, Arrays

__all__ = ["FLOAT", "INTEGER", "MATRIX", "SKIP", "Layout", "Parsed", "exact", "parse", "room_for"]

_LISTED_CELLS = 4096
"""Cells that the kernel may leave open, and one more for every four rows."""


@dataclass(frozen=True)
class Layout:
    """Where each column of a line goes: `kinds[c]` says how and `slots[c]` the position among its kind."""

    kinds: tuple[int, ...]
    slots: tuple[int, ...]
    delimiter: str
    null_values: tuple[str, ...]
    dtype: Any = np.float32

    def plan(self) -> np.ndarray:
        """For each column its kind, its slot, and how many from it on lie side by side in line and matrix."""
        runs = [0] * len(self.kinds)
        for column in range(len(self.kinds) - 2, -1, -1):  # the last one ends a line, and so no run
            if self.kinds[column] == MATRIX:
                beside = self.kinds[column + 1] == MATRIX and self.slots[column + 1] == self.slots[column] + 1
                runs[column] = 1 + (runs[column + 1] if beside else 0)
        return np.array([self.kinds, self.slots, runs], dtype=np.int64)

    def count(self, kind: int) -> int:
        """How many columns are of a kind."""
        return sum(k == kind for k in self.kinds)


@dataclass(frozen=True)
class Parsed:
    """Rows of a stretch: the matrix, and the columns that stand alone (one row of the array each)."""

    matrix: np.ndarray
    floats: np.ndarray
    integers: np.ndarray

    def column(self, kind: int, slot: int) -> np.ndarray:
        """The array of a column that went to `slot` among its kind."""
        return self.matrix if kind == MATRIX else self.floats[slot] if kind == FLOAT else self.integers[slot]


def room_for(rows: int, layout: Layout, buffers: Buffers = NEW_MEMORY) -> Arrays:
    """Arrays for so many rows of a layout, not filled yet."""
    return Arrays(
        buffers.empty((rows, layout.count(MATRIX)), layout.dtype),
        buffers.empty((layout.count(FLOAT), rows), np.float64),
        buffers.empty((layout.count(INTEGER), rows), np.int64),
    )


def parse(data: bytes | memoryview, layout: Layout, buffers: Buffers = NEW_MEMORY) -> Parsed | None:
    """Parse whole lines, or None when they are not for the kernel."""
    text = np.frombuffer(data, dtype=np.uint8)
    if not len(text):
        return None
    rows = kernel.count_byte(text, ord("\n")) + 1
    out = room_for(rows, layout, buffers)
    open_cells = np.empty((_LISTED_CELLS + rows // 4, 4), np.int64)
    words = [word.encode() for word in layout.null_values]
    done = kernel.read_rows(text, layout.plan(), words, ord(layout.delimiter), out, open_cells)
    if done.why != kernel.DONE:
        return None
    parsed = Parsed(out.matrix[: done.rows], out.floats[:, : done.rows], out.integers[:, : done.rows])
    return parsed if not done.listed or _settle(text, open_cells[: done.listed], layout, parsed) else None


def _settle(text: np.ndarray, cells: np.ndarray, layout: Layout, parsed: Parsed) -> bool:
    """Read the listed cells from their text, exactly; False if one is not a number."""
    raw = text.tobytes() if len(cells) > 1000 else None
    for kind, target in ((MATRIX, parsed.matrix), (FLOAT, parsed.floats)):
        mine = cells[np.array(layout.kinds)[cells[:, 1]] == kind]
        if not len(mine):
            continue
        words = [_word(text, raw, int(a), int(b)) for a, b in mine[:, 2:]]
        values = exact(words, target.dtype)
        if values is None:
            return False
        slots = np.array(layout.slots)[mine[:, 1]]
        if kind == MATRIX:
            target[mine[:, 0], slots] = values
        else:
            target[slots, mine[:, 0]] = values
    return True


def _word(text: np.ndarray, raw: bytes | None, start: int, end: int) -> str:
    cell = raw[start:end] if raw is not None else text[start:end].tobytes()
    return cell.strip(b" \t").removeprefix(b"+").decode("utf-8", "replace")


def exact(words: Sequence[str], dtype: Any) -> np.ndarray | None:
    """Numbers from words, correctly rounded to the dtype; None if a word is not a number."""
    try:
        return numbers(pa.array(words, pa.string()).cast(pa.from_numpy_dtype(dtype)))
    except pa.ArrowInvalid:
        return None

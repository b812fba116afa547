"""Numbers from text, compiled: a stretch of CSV lines straight into row-major arrays.

Covers: the Numba kernel for lines without quotes whose wanted columns are all floats or integers, and its tables;
it is compiled in the background while PyArrow serves (compile_background.py).
Does not cover: text, dates, quotes, damaged lines: the kernel hands these back and PyArrow reads them (csv_parse.py).

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
from penstock.memory.buffers import empty
from penstock.sources.compile_background import Kernel

SKIP, MATRIX, FLOAT, INTEGER = 0, 1, 2, 3
"""What becomes of a column: nothing, a column of the matrix, a float64 of its own, an int64 of its own."""


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


class CsvKernel(Kernel):
    """The compiled parser of this process."""

    def make(self, dtype: np.dtype[Any]) -> Any:
        from penstock.sources.csv_cells import TABLE
        from penstock.sources.csv_numba import compiled

        return *compiled(dtype), TABLE


kernel = CsvKernel()
"""One per process: compiled code is shared by all sources."""


def parse(data: bytes | memoryview, layout: Layout, wait: bool = False) -> Parsed | None:
    """Parse whole lines, or None when the kernel is not compiled yet or the lines are not for it."""
    found = kernel.get(layout.dtype, wait)
    if found is None:
        return None
    count, run, table = found
    text = np.frombuffer(data, dtype=np.uint8)
    if not len(text):
        return None
    words = [w.encode() for w in layout.null_values]
    ends = np.cumsum([0, *map(len, words)]).astype(np.int64)
    nulls = np.frombuffer(b"".join(words) or b"\0", dtype=np.uint8)
    rows = int(count(text)) + 1
    matrix = empty((rows, layout.count(MATRIX)), layout.dtype)
    floats = empty((layout.count(FLOAT), rows), np.float64)
    integers = empty((layout.count(INTEGER), rows), np.int64)
    slow = np.empty((4096 + rows // 4, 4), np.int64)
    out = (matrix, floats, integers)
    done, nslow = run(text, ord(layout.delimiter), layout.plan(), (nulls, ends), out, slow, table)
    if done < 0:
        return None
    parsed = Parsed(matrix[:done], floats[:, :done], integers[:, :done])
    return parsed if nslow == 0 or _settle(text, slow[:nslow], layout, parsed) else None


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

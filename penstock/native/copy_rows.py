"""Rows of PostgreSQL's binary COPY, into the buffers of Arrow columns.

Covers: the columns of a batch as the kernel takes them, storing rows, `numeric` (native/copy_rows.c).
Does not cover: the connection and Arrow's arrays (sources/sql/copy.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

MORE, FULL, DAMAGED, OVER = range(4)
"""Why rows end: the input is used up, no room for this row, nonsense, the end of the data."""

BYTE, SHORT, WORD, LONG, DAY, MOMENT, OPEN = range(7)
"""Kinds of column: 1, 2, 4 and 8 bytes, days, microseconds, and bytes of open length."""

WIDTHS = (1, 2, 4, 8, 4, 8, 0)

_rows = Kernel("copy_rows", INT32, ADDRESS, INT64, ADDRESS, INT64, INT64, ADDRESS)
_numeric = Kernel("copy_numeric", INT64, ADDRESS, INT64, ADDRESS, INT64, ADDRESS, ADDRESS)


class _Column(ctypes.Structure):
    """`column` of native/copy_rows.c."""

    _fields_ = [
        *((name, ADDRESS) for name in ("values", "valid", "data")),
        *((name, INT64) for name in ("data_len", "nulls", "kind")),
    ]


@dataclass(frozen=True)
class ColumnBuffers:
    """Values (offsets, if the column is open), a byte a row that says whether there is one, bytes of open values."""

    kind: int
    values: np.ndarray
    valid: np.ndarray
    data: np.ndarray


def buffers(kind: int, rows: int, nbytes: int) -> ColumnBuffers:
    """Room for so many rows, and so many bytes of all open values together."""
    is_open = kind == OPEN
    values = np.zeros(rows + 1, np.int32) if is_open else np.empty(rows * WIDTHS[kind], np.uint8)
    return ColumnBuffers(kind, values, np.ones(rows, np.uint8), np.empty(nbytes if is_open else 0, np.uint8))


def _column(own: ColumnBuffers) -> _Column:
    return _Column(address(own.values), address(own.valid), address(own.data), own.data.nbytes, 0, own.kind)


class RowTaker:
    """Stores rows in columns, from the first on."""

    def __init__(self, columns: Sequence[ColumnBuffers], rows: int) -> None:
        if any(c.data.nbytes > 2**31 - 1 for c in columns):
            raise InvalidInput("A batch of PostgreSQL rows is limited to 2 GB of text or bytes in one column.")
        self._columns, self._capacity = tuple(columns), rows
        self._table = (_Column * len(self._columns))(*map(_column, self._columns))
        self._progress = np.zeros(2, np.int64)

    @property
    def filled(self) -> int:
        """Rows that are stored."""
        return int(self._progress[0])

    def nulls(self, column: int) -> int:
        """Missing values of a column."""
        return int(self._table[column].nulls)

    def take(self, data: bytes, start: int = 0) -> tuple[int, int]:
        """Store the rows that lie whole in `data[start:]`: the place after them, and why no more."""
        at = np.frombuffer(data, np.uint8)
        rest = address(at) + start, len(at) - start
        many = len(self._columns), self._capacity
        why = _rows(*rest, ctypes.addressof(self._table), *many, address(self._progress))
        return start + int(self._progress[1]), int(why)


def numeric_to_float(column: ColumnBuffers, rows: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Binary `numeric` values as float64, and the rows which take more than one exact operation; None if damaged."""
    out, odd = np.empty(rows), np.empty(rows, np.int64)
    found = _numeric(address(column.data), column.data.nbytes, address(column.values), rows, address(out), address(odd))
    return None if found < 0 else (out, odd[:found])

"""Lines of numbers to rows: the cells of CSV text straight into a matrix and into columns of their own.

Covers: calling the kernel (native/csv_rows.c), the arrays it fills, counting lines (native/text_lines.c).
Does not cover: quotes, text, dates, and when it is used (sources/csv/numbers.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

SKIP, MATRIX, FLOAT, INTEGER = 0, 1, 2, 3
"""What becomes of a column: nothing, a column of the matrix, a float64 of its own, an int64 of its own."""

DONE, CELLS, NOT_INTEGER, LISTED, ROWS = range(5)
"""Why a call ended: all is read; a line has more or fewer cells; a cell is no integer; no room for another unsettled
cell, or for another row."""

_ENDS, _STRIDE = 2048, 64
"""Ends of cells that are looked up at a time: with their text they stay in the fastest cache."""


class RowsJob(ctypes.Structure):
    """number_rows in native/number_rows.h: the head of what kernels for lines of numbers are told."""

    _fields_ = [
        ("text", ADDRESS),
        ("text_len", INT64),
        ("kinds", ADDRESS),
        ("slots", ADDRESS),
        ("columns", INT64),
        ("matrix", ADDRESS),
        ("width", INT64),
        ("item", INT64),
        ("floats", ADDRESS),
        ("floats_len", INT64),
        ("integers", ADDRESS),
        ("integers_len", INT64),
        ("rows", INT64),
        ("rows_done", INT64),
        ("bytes_done", INT64),
    ]


class _CsvJob(RowsJob):
    """csv_job in native/csv_rows.c."""

    _fields_ = [
        ("runs", ADDRESS),
        ("words", ADDRESS),
        ("word_ends", ADDRESS),
        ("words_len", INT64),
        ("listed", ADDRESS),
        ("listed_len", INT64),
        ("listed_done", INT64),
        ("ends", ADDRESS),
        ("ends_len", INT64),
        ("delimiter", INT64),
    ]


_rows = Kernel("csv_rows", INT32, ctypes.POINTER(_CsvJob))
_count = Kernel("text_count", INT64, ADDRESS, INT64, INT32)


@dataclass(frozen=True)
class Arrays:
    """Where numbers go: a matrix of float32 or float64, and one row of `floats` or `integers` for each other column."""

    matrix: np.ndarray
    floats: np.ndarray
    integers: np.ndarray

    def __post_init__(self) -> None:
        kinds = self.floats.dtype == np.float64 and self.integers.dtype == np.int64
        if not kinds or self.matrix.dtype not in (np.float32, np.float64):
            raise InvalidInput(f"Numbers do not go to {self.matrix.dtype}, {self.floats.dtype}, {self.integers.dtype}.")
        shapes = self.matrix.shape, self.floats.shape, self.integers.shape
        rows = {self.matrix.shape[0], self.floats.shape[-1], self.integers.shape[-1]}
        whole = all(a.ndim == 2 and a.flags.carray for a in (self.matrix, self.floats, self.integers))
        if not whole or len(rows) != 1:
            raise InvalidInput(f"Arrays of {shapes} are not of the same rows, or not contiguous.")

    @property
    def rows(self) -> int:
        return len(self.matrix)


@dataclass(frozen=True)
class RowsRead:
    """How far a call got, and why it ended."""

    why: int
    rows: int
    listed: int
    nbytes: int


def rows_job(text: np.ndarray, plan: np.ndarray, out: Arrays) -> dict[str, int]:
    """The fields of RowsJob for `text` (uint8), a plan (int64, contiguous: kinds, slots, ...) and arrays to fill."""
    if text.dtype != np.uint8 or not text.flags.c_contiguous:
        raise InvalidInput(f"read_rows takes contiguous bytes, not {text.dtype}.")
    return {
        "text": address(text),
        "text_len": text.nbytes,
        "kinds": address(plan),
        "slots": address(plan[1]),
        "columns": plan.shape[1],
        "matrix": address(out.matrix),
        "width": out.matrix.shape[1],
        "item": out.matrix.itemsize,
        "floats": address(out.floats),
        "floats_len": len(out.floats),
        "integers": address(out.integers),
        "integers_len": len(out.integers),
        "rows": out.rows,
    }


def run_rows(kernel: Kernel, job: RowsJob) -> int:
    """Why the call ended; raises if the job's arguments do not fit each other."""
    why = int(kernel(ctypes.byref(job)))
    if why < 0:
        raise InvalidInput(f"A plan of {job.columns} columns does not fit its arrays.")
    return why


def count_byte(text: np.ndarray, byte: int) -> int:
    """How often a byte stands in a text (uint8, contiguous)."""
    return int(_count(address(text), text.nbytes, byte))


def read_rows(
    text: np.ndarray, plan: np.ndarray, words: Sequence[bytes], delimiter: int, out: Arrays, listed: np.ndarray
) -> RowsRead:
    """Read every line of `text` (uint8, contiguous, without quotes) into `out`.

    `plan` has for each column its kind, its slot among its kind, and how many from it on lie side by side in line and
    matrix (the last column is in no run). `words` mean missing values. Cells that are no number and none of them are
    listed: rows of row, column, start and end in `listed`.
    """
    plan, ends = np.ascontiguousarray(plan, np.int64), np.cumsum([0, *map(len, words)])[1:].astype(np.int64)
    joined = np.frombuffer(b"".join(words) or b"\0", np.uint8)
    scratch = np.empty(max(_ENDS, 4 * plan.shape[1]) + 3 * _STRIDE, np.int64)
    if not listed.flags.carray or listed.dtype != np.int64:
        raise InvalidInput(f"read_rows lists cells into contiguous int64, not {listed.dtype}.")
    job = _CsvJob(
        **rows_job(text, plan, out),
        runs=address(plan[2]),
        words=address(joined),
        word_ends=address(ends),
        words_len=len(ends),
        listed=address(listed),
        listed_len=len(listed),
        ends=address(scratch),
        ends_len=len(scratch),
        delimiter=delimiter,
    )
    return RowsRead(run_rows(_rows, job), int(job.rows_done), int(job.listed_done), int(job.bytes_done))

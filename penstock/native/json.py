"""Lines of JSON objects of plain numbers to rows.

Covers: calling the kernel (native/json_rows.c).
Does not cover: when it is used (sources/json/numbers.py), all else that JSON can hold.
"""

from __future__ import annotations

import ctypes

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.csv import Arrays, RowsJob, rows_job, run_rows
from penstock.native.library import ADDRESS, INT32, Kernel, address

DONE, OTHER, ROWS = range(3)
"""Why a call ended: all is read; a line is not for the kernel; no room for another row."""


class _JsonJob(RowsJob):
    """json_job in native/json_rows.c."""

    _fields_ = [("keys", ADDRESS), ("key_ends", ADDRESS)]


_rows = Kernel("json_rows", INT32, ctypes.POINTER(_JsonJob))


def read_rows(text: np.ndarray, keys: bytes, key_ends: np.ndarray, plan: np.ndarray, out: Arrays) -> tuple[int, int]:
    """Read every line of `text` (uint8, contiguous) into `out`; why it ended, and how many rows were read.

    `keys` are the keys in their order, each with its quotes and colon, and `key_ends` where each ends. `plan` has for
    each its kind (as in native/csv.py) and its slot among its kind.
    """
    plan, key_ends = np.ascontiguousarray(plan, np.int64), np.ascontiguousarray(key_ends, np.int64)
    known = np.frombuffer(keys or b"\0", np.uint8)
    if len(key_ends) != plan.shape[1] or not len(key_ends) or key_ends[-1] > len(keys):
        raise InvalidInput(f"{len(key_ends)} keys do not fit a plan of {plan.shape[1]} columns.")
    job = _JsonJob(**rows_job(text, plan, out), keys=address(known), key_ends=address(key_ends))
    return run_rows(_rows, job), int(job.rows_done)

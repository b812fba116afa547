"""Predictions on their way to disk.

Covers: writing batches of arrays to one Parquet or NumPy file as they come, whole or not there.
Does not cover: making them (guard/infer.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten

_HEADER = 128
"""Bytes kept for the NumPy header, whose row count is known only at the end."""


def write_predictions(batches: Iterable[Any], out: str | os.PathLike[str]) -> int:
    """Write each batch as it comes; the file gets its name when it is complete. Returns the rows written."""
    path = Path(out)
    writers = {".parquet": _write_parquet, ".npy": _write_npy}
    if path.suffix not in writers:
        raise InvalidInput(f"Predictions go to a .parquet or .npy file, not {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        rows = writers[path.suffix](batches, unfinished)
        if not rows:
            raise InvalidInput("The dataset has no batches, so there is nothing to predict.")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return rows


def _write_parquet(batches: Iterable[Any], path: Path) -> int:
    """Columns are named as the outputs; a bare output is 'prediction'. Rows that are arrays become lists."""
    rows, writer = 0, None
    try:
        for batch in batches:
            table = pa.table({name: _column(array) for name, array in _columns(batch).items()})
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _write_npy(batches: Iterable[Any], path: Path) -> int:
    rows, first = 0, None
    with open(path, "wb") as file:
        file.write(b"\0" * _HEADER)
        for batch in batches:
            if not isinstance(batch, np.ndarray):
                raise InvalidInput("A .npy file holds one array; this model has several outputs. Write .parquet.")
            first = batch[:0] if first is None else first
            file.write(np.ascontiguousarray(batch).reshape(-1).view(np.uint8).data)
            rows += len(batch)
        if first is not None:
            file.seek(0)
            file.write(_npy_header(first.dtype, (rows, *first.shape[1:])))
    return rows


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    prefix = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return prefix + text.ljust(_HEADER - 11).encode() + b"\n"


def _columns(batch: Any) -> dict[str, np.ndarray]:
    _, leaves = flatten(tuple(batch) if isinstance(batch, list) else batch)
    if list(leaves) == ["value"]:
        return {"prediction": leaves["value"]}
    return {f"prediction_{name}" if name.isdigit() else name: array for name, array in leaves.items()}


def _column(array: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    for width in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, width)
    return flat

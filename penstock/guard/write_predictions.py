"""Predictions on their way to disk.

Covers: writing batches of arrays to one Parquet, CSV, JSON lines or NumPy file as they come, whole or not there.
Does not cover: making them (guard/keras/predict.py).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from penstock.core.durable import replace_durably
from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten

_HEADER = 128
"""Bytes kept for the NumPy header, whose row count is known only at the end."""


def write_predictions(batches: Iterable[Any], out: str | os.PathLike[str]) -> int:
    """Write each batch as it comes; the file gets its name when it is complete. Returns the rows written."""
    path = Path(out)
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"Predictions go to a file that ends in {', '.join(ENDINGS)}, not {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        rows = _WRITERS[path.suffix](batches, unfinished)
        if not rows:
            raise InvalidInput("The dataset has no batches, so there is nothing to predict.")
        replace_durably(unfinished, path)
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


def _write_csv(batches: Iterable[Any], path: Path) -> int:
    """Rows that are arrays become columns of their own: probabilities_0, probabilities_1 and so on."""
    rows, writer = 0, None
    try:
        for batch in batches:
            flat = {key: value for name, array in _columns(batch).items() for key, value in _flat(name, array).items()}
            table = pa.table({name: _column(array) for name, array in flat.items()})
            if writer is None:
                writer = pa_csv.CSVWriter(path, table.schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _flat(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    if array.ndim == 1:
        return {name: array}
    cells = array.reshape(len(array), -1)
    return {f"{name}_{place}": cells[:, place] for place in range(cells.shape[1])}


def _write_jsonl(batches: Iterable[Any], path: Path) -> int:
    """One object a line; rows that are arrays are lists, and what JSON has no number for is null."""
    rows = 0
    with open(path, "w", encoding="utf-8") as file:
        for batch in batches:
            columns = {name: array.tolist() for name, array in _columns(batch).items()}
            for values in zip(*columns.values(), strict=True):
                row = {name: _plain(value) for name, value in zip(columns, values, strict=True)}
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                rows += 1
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


_WRITERS = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl, ".npy": _write_npy}
ENDINGS = tuple(_WRITERS)

"""Rows of several blocks in mixed order, into arrays that are there already.

Covers: which columns are copied row by row as they are (native/gather.py), and which are converted, block by block.
Does not cover: which rows (engine/streams/window_shuffle.py), who pays for them (leased_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.core.block import Block, take_column
from penstock.native import gather as kernel

_INDEX_NBYTES = 24
"""For each row its number in the window, its block and its row there."""


def scratch_nbytes(rows: int, out: Mapping[str, np.ndarray]) -> int:
    """What `write_rows` needs besides `out`: which block and row each row is, and a column to put in order."""
    return _INDEX_NBYTES * rows + max((array.nbytes for array in out.values()), default=0)


def write_rows(blocks: Sequence[Block], ends: np.ndarray, order: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
    """Row `order[i]` of the joined blocks to row i of every array in `out`."""
    plain = {name: array for name, array in out.items() if _copyable(name, array, blocks)}
    if plain:
        which, rows = kernel.locate(order, ends)
        for name, array in plain.items():
            kernel.copy_rows([np.asarray(block.columns[name]) for block in blocks], which, rows, array)
    if len(plain) < len(out):
        _write_by_block(blocks, ends, order, {n: a for n, a in out.items() if n not in plain})


def _copyable(name: str, array: np.ndarray, blocks: Sequence[Block]) -> bool:
    """Whether the bytes of rows can be copied as they are."""
    if not len(array) or not array.flags.c_contiguous or array.dtype.hasobject:
        return False
    for block in blocks:
        column = block.columns[name]
        if not isinstance(column, np.ndarray) or not column.flags.c_contiguous:
            return False
        if column.dtype != array.dtype or column.shape[1:] != array.shape[1:]:
            return False
    return True


def rows_by_block(
    blocks: Sequence[Block], ends: np.ndarray, order: np.ndarray
) -> tuple[list[tuple[Block, np.ndarray]], np.ndarray]:
    """Per block the rows to take, and where each output row then stands."""
    which = np.searchsorted(ends, order, side="right").astype(np.int16)
    grouped = np.argsort(which, kind="stable")
    counts = np.bincount(which, minlength=len(blocks))
    parts, at = [], 0
    for index, count in enumerate(counts):
        if count:
            first = int(ends[index - 1]) if index else 0
            parts.append((blocks[index], order[grouped[at : at + count]] - first))
            at += int(count)
    back = np.empty(len(grouped), dtype=np.intp)
    back[grouped] = np.arange(len(grouped))
    return parts, back


def _write_by_block(
    blocks: Sequence[Block], ends: np.ndarray, order: np.ndarray, out: Mapping[str, np.ndarray]
) -> None:
    """Rows are gathered block by block into a small scratch array and put in order there."""
    parts, back = rows_by_block(blocks, ends, order)
    for name, array in out.items():
        columns = [(b.columns[name], rows) for b, rows in parts]
        if len(columns) == 1:
            _take_into(columns[0][0], columns[0][1], array)
            continue
        scratch = np.empty(array.shape, array.dtype)
        at = 0
        for column, rows in columns:
            _take_into(column, rows, scratch[at : at + len(rows)])
            at += len(rows)
        np.take(scratch, back, axis=0, out=array, mode="clip")


def _take_into(column: object, rows: np.ndarray, out: np.ndarray) -> None:
    if isinstance(column, np.ndarray) and column.dtype == out.dtype and out.flags.c_contiguous:
        np.take(column, rows, axis=0, out=out, mode="clip")  # clip: no bounds buffer, no GIL
    else:
        np.copyto(out, take_column(column, rows), casting="same_kind")

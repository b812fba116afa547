"""One batch, cut into parts that fit.

Covers: counting the rows of any tree of arrays, cutting it into near-equal parts, each part's share.
Does not cover: how large a part may be (ladder.py), sums over parts (guard/{keras,torch,jax}/).

Parts are near equal (10 in parts of at most 4 is 4+3+3, not 4+4+2): the largest part is as small as that number of
parts allows, and there are at most two shapes for a compiler to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten, map_leaves


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a batch. `share` is its rows over the batch's rows."""

    data: Any
    start: int
    rows: int
    share: float


def count_rows(batch: object) -> int:
    """The rows of a batch, which all of its arrays must agree on. None stands for an array that is not there."""
    rows: int | None = None
    for name, leaf in flatten(batch)[1].items():
        if leaf is None:
            continue
        shape = getattr(leaf, "shape", None)
        if shape is None:
            raise InvalidInput(
                f"Batch entry {name!r} is a {type(leaf).__name__}; a batch is arrays in tuples or dicts. "
                f"Make it an array, or a tuple if it is a list of arrays."
            )
        if len(shape) == 0:
            raise InvalidInput(f"Batch entry {name!r} is a scalar; it has no rows. Is .batch(n) missing?")
        if rows is not None and int(shape[0]) != rows:
            raise InvalidInput(f"Batch entry {name!r} has {int(shape[0])} rows where others have {rows}.")
        rows = int(shape[0])
    if not rows:
        raise InvalidInput("The batch has no rows.")
    return rows


def part_sizes(rows: int, micro: int) -> list[int]:
    """Sizes of the fewest near-equal parts of at most `micro` rows, larger ones first."""
    count = num_parts(rows, micro)
    small, larger = divmod(rows, count)
    return [small + 1] * larger + [small] * (count - larger)


def num_parts(rows: int, micro: int) -> int:
    """How many parts of at most `micro` rows there are."""
    if micro < 1:
        raise InvalidInput(f"A micro-batch needs at least one row, not {micro}.")
    return -(-rows // micro)


def split(batch: object, micro: int, *, rows: int | None = None) -> Iterator[Part]:
    """The batch's parts in row order, as views, larger ones first. `rows` if they were counted before."""
    rows = count_rows(batch) if rows is None else rows
    if micro >= rows:
        yield Part(batch, 0, rows, 1.0)
        return
    start = 0
    for size in part_sizes(rows, micro):
        yield Part(_rows_of(batch, slice(start, start + size)), start, size, size / rows)
        start += size


def first_parts(batch: object, sizes: Sequence[int]) -> list[Part]:
    """Parts of the given sizes from the batch's beginning, weighted as if they were all of it."""
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    cuts = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return [Part(_rows_of(batch, c), c.start, c.stop - c.start, (c.stop - c.start) / sum(sizes)) for c in cuts]


def _rows_of(batch: object, cut: slice) -> Any:
    return map_leaves(batch, lambda leaf: None if leaf is None else leaf[cut])

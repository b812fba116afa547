"""Old Parquet times (INT96) that nanoseconds cannot hold: refused, where Arrow wraps them around.

Covers: finding such columns in a footer, checking the row groups that are about to be read.
Does not cover: times of other types, which Arrow reads in the unit that they are stored in.

INT96 holds every year, and Arrow reads it in nanoseconds, which hold 1677 to 2262: a last day of the year 9999, as many
databases write for "never ends", would silently become a day of 1816.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.errors import BadData

_ROWS = 65_536
"""Read at a time: half a megabyte of times."""


def int96_columns(schema: Any, wanted: Sequence[str] | None) -> list[str]:
    """Columns among those read that hold INT96, by their outermost names."""
    leaves = [schema.column(i) for i in range(len(schema))]
    found = dict.fromkeys(leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96")
    return [name for name in found if wanted is None or name in wanted]


def require_nanoseconds(path: str, source: Callable[[], Any], groups: list[int], columns: list[str]) -> None:
    """Raise BadData unless every time of these row groups is one that nanoseconds hold."""
    with source() as file:
        reader = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        at = 0
        for batch in reader.iter_batches(_ROWS, row_groups=groups, columns=columns, use_threads=False):
            for name, column in zip(batch.schema.names, batch.columns):
                for times in _times(column):
                    _require_range(path, groups[0], at, name, times)
            at += batch.num_rows


def _times(array: pa.Array) -> Iterator[pa.Array]:
    """The times in a column, whatever they are nested in."""
    if pt.is_timestamp(array.type):
        yield array
    elif pt.is_struct(array.type):
        for part in array.flatten():
            yield from _times(part)
    elif pt.is_map(array.type):
        yield from _times(array.keys)
        yield from _times(array.items)
    elif pt.is_list(array.type) or pt.is_large_list(array.type):
        yield from _times(array.flatten())


def _require_range(path: str, group: int, at: int, name: str, times: pa.Array) -> None:
    try:
        times.cast(pa.timestamp("ns", times.type.tz))
    except pa.ArrowInvalid as error:
        raise BadData(
            f"{path}, row group {group}, rows {at} and after",
            f"column {name!r} holds a time before 1677 or after 2262 as INT96, which does not fit into nanoseconds. "
            f"Leave the column out with columns=, or write it again as a timestamp of microseconds",
        ) from error

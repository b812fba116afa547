"""Cutting a query's result into ranges of a key.

Covers: finding range borders that share the rows evenly, and the SQL of one range, also from a key onwards.
Does not cover: running it (connect.py), blocks (source.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import InvalidInput, NotFound
from penstock.sources.sql.connect import Database, identifier, literal


@dataclass(frozen=True)
class Partition:
    """Rows with low <= key < high; None is open; `nulls` takes the rows without a key."""

    low: Any = None
    high: Any = None
    nulls: bool = False


@dataclass(frozen=True)
class PartitionLayout:
    """All partitions of a query, and the rows in them if they were counted."""

    key: str | None
    partitions: tuple[Partition, ...]
    rows: int | None


def wrapped(query: str) -> str:
    """The user's query as something to select from; a bare name is a table."""
    text = query.strip().rstrip(";").strip()
    if not text:
        raise InvalidInput("The query is empty.")
    text = text if any(c.isspace() for c in text) else f"select * from {text}"
    return f"({text}\n) as penstock_rows"  # the newline ends a comment that the query may end with


def find_key(wanted: str, names: Sequence[str]) -> str:
    """The result's column that `partition_on` means."""
    for name in names:
        if name == wanted:
            return name
    same = [name for name in names if name.lower() == wanted.lower()]
    if len(same) != 1:
        raise NotFound(f"partition_on={wanted!r} is not a column of the query. There are: {', '.join(names)}.")
    return same[0]


def plan(database: Database, query: str, key: str, partitions: int | Sequence[Any]) -> PartitionLayout:
    """Ranges of about equal numbers of rows: given borders, or quantiles found in one pass over the keys."""
    column, rows_of = identifier(key), wrapped(query)
    if not isinstance(partitions, int):
        borders = list(partitions)
        return PartitionLayout(key, (*_ranges(borders), Partition(nulls=True)), None)
    if partitions < 1:
        raise InvalidInput(f"partitions must be at least 1, not {partitions}.")
    if database.kind == "postgresql":
        return _percentiles(database, rows_of, key, partitions)
    found = database.rows(
        f"select min(penstock_key) as low, count(*) as n from (select {column} as penstock_key, "
        f"ntile({partitions}) over (order by {column}) as penstock_tile from {rows_of} where {column} is not null) "
        f"as penstock_tiles group by penstock_tile order by 1"
    )
    nulls = database.rows(f"select count(*) as n from {rows_of} where {column} is null")[0][0]
    borders = list(dict.fromkeys(low for low, _ in found))[1:]
    ranges = _ranges(borders) if found else []
    return PartitionLayout(
        key, (*ranges, *([Partition(nulls=True)] if nulls or not found else [])), sum(n for _, n in found) + nulls
    )


def _percentiles(database: Database, rows_of: str, key: str, partitions: int) -> PartitionLayout:
    """Borders by PostgreSQL's own aggregate: a fourth of the work of numbering every row."""
    column = identifier(key)
    shares = ", ".join(repr(i / partitions) for i in range(1, partitions))
    found = database.rows(
        f"select unnest(percentile_disc(array[{shares}]::float8[]) within group (order by {column})) as low, "
        f"count(*) as n, count({column}) as keys from {rows_of}"
    )
    total, keys = found[0][1:] if found else database.rows(f"select count(*), count({column}) from {rows_of}")[0]
    ranges = _ranges(list(dict.fromkeys(low for low, *_ in found))) if keys else []
    return PartitionLayout(key, (*ranges, *([Partition(nulls=True)] if total > keys or not keys else [])), total)


def _ranges(borders: Sequence[Any]) -> list[Partition]:
    lows, highs = [None, *borders], [*borders, None]
    return [Partition(low, high) for low, high in zip(lows, highs, strict=True)]


def select(query: str, key: str | None, partition: Partition, after: Any = None) -> str:
    """The SQL of one partition, from key `after` (included) on."""
    if key is None:
        return (
            query.strip().rstrip(";") if any(c.isspace() for c in query.strip()) else f"select * from {query.strip()}"
        )
    column = identifier(key)
    if partition.nulls:
        return f"select * from {wrapped(query)} where {column} is null"
    low = after if after is not None else partition.low
    terms = [f"{column} is not null"]
    if low is not None:
        terms.append(f"{column} >= {literal(low)}")
    if partition.high is not None:
        terms.append(f"{column} < {literal(partition.high)}")
    return f"select * from {wrapped(query)} where {' and '.join(terms)} order by {column}"

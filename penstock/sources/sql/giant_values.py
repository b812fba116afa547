"""Values that can never fit are refused by the database, before it sends them.

Covers: a query that looks at the size of each text and blob first, telling its refusal from other errors, the memory
that DuckDB may take.
Does not cover: SQLite, whose own limit on the length of a value does this (connect.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.core.errors import TooLarge
from penstock.memory.giant import most_nbytes
from penstock.memory.limits import current_limit

COPIES = 3
"""A value in a COPY: as libpq gathers it (in a buffer that doubles), as Python's bytes, as Arrow's."""

OPEN_TYPES = {17: "bytea", 25: "text", 1042: "text::bpchar", 1043: "text"}
"""PostgreSQL's types of open length that are looked at, and what a cast to them is written like."""

_SIGN = "penstock found a value of"


def most_in_copy() -> int:
    """How large one value may be that PostgreSQL sends."""
    return most_nbytes() * 3 // (2 * COPIES)


def with_sizes_checked(query: str, types: Sequence[int], names: Sequence[str]) -> str:
    """A PostgreSQL query that fails where a text or blob is too large; `types` by their number in the catalogue.

    The size of a stored value is known without reading it. The failure is a cast of words to an integer: PostgreSQL
    has no other one in plain SQL, and it depends on the row, so that no planner works it out beforehand.
    """
    if not any(kind in OPEN_TYPES for kind in types):
        return query
    most, columns = most_in_copy(), []
    for i, (kind, name) in enumerate(zip(types, names, strict=True)):
        value = f"c{i}"
        if kind in OPEN_TYPES:
            words = f"('{_SIGN} ' || octet_length(c{i}) || ' bytes in column {i}')::int::text::{OPEN_TYPES[kind]}"
            value = f"case when octet_length(c{i}) > {most} then {words} else c{i} end"
        columns.append(f"{value} as " + '"' + name.replace('"', '""') + '"')
    aliases = ", ".join(f"c{i}" for i in range(len(types)))
    return f"select {', '.join(columns)} from ({query}\n) as penstock_sized({aliases})"


def too_large(message: str, database: str, names: Sequence[str]) -> TooLarge | None:
    """The refusal that a server's message tells of; None for other messages."""
    found = re.search(f"{_SIGN} (\\d+) bytes in column (\\d+)", message)
    if found is None:
        return None
    nbytes, column = int(found[1]), int(found[2])
    name = names[column] if column < len(names) else str(column)
    return TooLarge(
        who=f"{database}: a value in column {name[:60]!r}",
        nbytes=COPIES * nbytes,
        limit=COPIES * most_in_copy(),
        change="Leave the column out, select a part of it (substring)",
    )


def duckdb_memory() -> str:
    """What DuckDB may take for sorting and for values: it refuses larger ones, and sorts on disk beyond this."""
    return f"{min(512, max(64, current_limit().nbytes // 4_000_000))}MB"

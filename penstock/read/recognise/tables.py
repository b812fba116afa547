"""Which table of a database is meant, where nobody wrote a query.

Covers: addresses and files of databases, the only table of one, its key.
Does not cover: reading (read/sql.py), drivers (sources/sql/connect.py).
"""

from __future__ import annotations

import os
from typing import Any

from penstock.core.errors import DataError, InvalidInput
from penstock.dataset import Dataset
from penstock.read.sql import read_sql
from penstock.sources.sql.connect import ConnectionLostError, Database, literal

_SCHEMES = ("postgresql://", "postgres://", "sqlite://", "duckdb://")
_FILES = {".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".duckdb": "duckdb"}

_TABLES = {
    "sqlite": "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by 1",
    "duckdb": "select table_name from information_schema.tables where table_schema = 'main' order by 1",
    "postgresql": "select table_name from information_schema.tables where table_schema = current_schema() order by 1",
}
_KEYS = {
    "sqlite": "select name from pragma_table_info({table}) where pk > 0",
    "postgresql": (
        "select k.column_name from information_schema.table_constraints c "
        "join information_schema.key_column_usage k using (constraint_name, table_schema, table_name) "
        "where c.constraint_type = 'PRIMARY KEY' and c.table_name = {table}"
    ),
}


def database_of(path: str) -> str | None:
    """The address of a database, with what follows "#"; None for anything else."""
    if path.startswith(_SCHEMES):
        return path
    name, mark, rest = path.partition("#")
    kind = _FILES.get(os.path.splitext(name)[1].lower())
    if kind is None or not os.path.isfile(name):
        return None
    return f"{kind}:///{os.path.abspath(name)}{mark}{rest}"


def open_database(path: str, query: str | None, **options: Any) -> Dataset:
    """Rows of a table or select. It is `query`, or what follows "#" in the address, or the only table there is.

    A table with a key of one column is read in ranges of it, in parallel and in any order.
    """
    address = database_of(path) or path
    uri, _, asked = address.partition("#")
    query = query or asked or _only_table(uri)
    if "partition_on" not in options and not any(c.isspace() for c in query.strip()):
        options["partition_on"] = _key(uri, query.strip())
    return read_sql(uri, query, **options)


def _only_table(uri: str) -> str:
    database = Database(uri)
    found = [str(row[0]) for row in database.rows(_TABLES[database.kind])]
    if len(found) == 1:
        return found[0]
    what = f"it has {', '.join(found[:40])}" if found else "it has no tables"
    raise InvalidInput(f"{database.name}: which rows are meant? Give a query or a table (--query TABLE); {what}.")


def _key(uri: str, table: str) -> str | None:
    """The column that identifies rows; None where there is none, or several together."""
    database = Database(uri)
    query = _KEYS.get(database.kind)
    if query is None:
        return None
    try:
        found = database.rows(query.format(table=literal(table.rpartition(".")[2].strip('"'))))
    except ConnectionLostError:
        raise
    except DataError:  # a view, or rights that end before the catalogue
        return None
    return str(found[0][0]) if len(found) == 1 else None

"""A column's type is decided once for the whole query: integers with missing values are exact or refused."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.errors import BadData, DataError, InvalidInput
from penstock.sources.sql import connect, copy
from penstock.sources.sql.types import refuse_rounded

ROWS = 2000


@pytest.fixture(params=["sqlite", "duckdb"])
def database(request: Any, tmp_path: Path) -> Any:
    def made(values: list[Any], kind: str = "bigint") -> str:
        path = tmp_path / "a.db"
        path.unlink(missing_ok=True)
        open_database: Any = sqlite3.connect if request.param == "sqlite" else duckdb.connect
        connection = open_database(str(path))
        connection.execute(f"create table t (k integer, id {kind})")
        connection.execute("begin transaction")
        connection.executemany("insert into t values (?, ?)", list(enumerate(values)))
        connection.commit()
        connection.close()
        return f"{request.param}:///{path}"

    return made


def ids(uri: str, **options: Any) -> list[np.ndarray]:
    found = [b["id"] for b in ps.read_sql(uri, "select k, id from t order by k", **options).batch(ROWS // 8)]
    return [np.asarray(batch) for batch in found]


def test_a_column_with_missing_values_is_float64_in_every_batch(database: Any) -> None:
    values = [None if i == 3 else i for i in range(ROWS)]
    for options in ({}, {"partition_on": "k", "partitions": 8}):
        found = ids(database(values), **options)
        assert {batch.dtype for batch in found} == {np.dtype(np.float64)}
        assert np.isnan(found[0][3]) and [int(v) for v in np.concatenate(found)[4:]] == values[4:]


def test_a_value_that_is_missing_behind_the_first_rows_counts_for_all_of_them(database: Any) -> None:
    values = [None if i == ROWS - 5 else i for i in range(ROWS)]
    uri = database(values)
    found = ids(uri)
    assert {batch.dtype for batch in found} == {np.dtype(np.float64)}
    assert np.flatnonzero(np.isnan(np.concatenate(found))).tolist() == [ROWS - 5]
    assert np.concatenate(ids(uri, fill={"id": -1})).tolist() == [-1 if v is None else v for v in values]


def test_a_value_that_went_missing_since_is_refused_by_name(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("create table t (k integer primary key, id integer)")
        connection.executemany("insert into t values (?, ?)", [(i, i) for i in range(400)])
    dataset = ps.read_sql(f"sqlite:///{tmp_path}/a.db", "select k, id from t")
    assert len(list(dataset)) == 400
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("update t set id = null where k = 395")
    with pytest.raises(BadData, match=r"column 'id' .int64. has a missing value.*fill="):
        list(dataset)


def test_long_ids_beside_missing_values_are_never_rounded(database: Any) -> None:
    values = [None if i == 3 else 2**53 + 1 for i in range(ROWS)]
    uri = database(values)
    with pytest.raises(BadData, match=r"column 'id' has missing values, so it is float64.*would round.*fill="):
        ids(uri)
    assert np.concatenate(ids(uri, fill={"id": 0}))[5] == 2**53 + 1


def test_sqlites_types_of_values_do_not_change_from_range_to_range(tmp_path: Path) -> None:
    def written(values: list[Any]) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        with sqlite3.connect(path) as connection:
            connection.execute("create table t (k integer primary key, id)")
            connection.executemany("insert into t values (?, ?)", list(enumerate(values)))
        return f"sqlite:///{path}"

    ranges: dict[str, Any] = {"partition_on": "k", "partitions": 8}
    floats = ids(written([i / 2 for i in range(256)] + [5] * ROWS), **ranges)
    assert {batch.dtype for batch in floats} == {np.dtype(np.float64)}
    missing = ids(written([i or None for i in range(256)] + [None] * ROWS), **ranges)
    assert {batch.dtype for batch in missing} == {np.dtype(np.float64)}
    for odd in (0.5, "five"):
        with pytest.raises(DataError, match=r"column 'id' is.*CAST it in the query"):
            ids(written([*range(256), *[odd] * ROWS]), **ranges)


@pytest.mark.parametrize("value", ["9007199254740993", "-9007199254740993", "100000000000000000001"])
def test_a_whole_numeric_that_float64_would_round_is_refused(value: str) -> None:
    with pytest.raises(DataError, match=f"column 'id' is numeric.*would round {value}.*bigint"):
        refuse_rounded("id", Decimal(value))
    kind: Any = pa.opaque(pa.string(), "numeric", "PostgreSQL")
    text = pa.ExtensionArray.from_storage(kind, pa.array(["1.5", None, value]))
    with pytest.raises(DataError, match=value):
        connect._plain(pa.RecordBatch.from_arrays([text], names=["id"]))
    text = pa.ExtensionArray.from_storage(kind, pa.array(["9007199254740993.5", None, "9007199254740992"]))
    assert connect._plain(pa.RecordBatch.from_arrays([text], names=["id"])).column(0)[2].as_py() == 2**53


def test_postgresqls_binary_numeric_is_exact() -> None:
    groups = [900, 7199, 2547, 4099, 3]  # 900 7199 2547 4099 3 in base 10,000
    value = b"".join(n.to_bytes(2, "big") for n in (len(groups), len(groups) - 1, 0, 0, *groups))
    assert copy._decimal(value) == Decimal("9007199254740990003")
    assert copy.numeric(value) == float(9007199254740990003)


@pytest.mark.parametrize(("value", "kind"), [("interval 1 month", "interval"), ("5::bignum", "bignum")])
def test_types_of_the_databases_own_are_refused_unless_left_out(tmp_path: Path, value: str, kind: str) -> None:
    duckdb.connect(str(tmp_path / "a.db")).close()
    uri, query = f"duckdb:///{tmp_path}/a.db", f"select 1 as id, {value} as x"
    with pytest.raises(InvalidInput, match=f"column 'x' is of the type {kind}.*CAST it"):
        list(ps.read_sql(uri, query))
    assert [int(row["id"]) for row in ps.read_sql(uri, query, columns=["id"])] == [1]

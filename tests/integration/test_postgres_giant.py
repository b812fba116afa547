"""Values of a database that cannot fit: refused by name under a real limit, before they are sent or held."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server

import penstock as ps
from penstock.core.errors import TooLarge
from penstock.memory.cgroups import find_cgroups
from penstock.memory.jail import run_limited
from penstock.sources.sql.connect import Database

pytestmark = pytest.mark.skipif(not find_cgroups(), reason="no memory cgroup here")
GIANT = 120_000_000
READ = """
import sys
import penstock as ps
from penstock.core.errors import PenstockError
rows = 0
try:
    for row in ps.read_sql(sys.argv[1], sys.argv[2]):
        rows += 1
        assert len(row["b"]) < 1000
except PenstockError as error:
    print("REFUSED", type(error).__name__, error)
print("ROWS", rows)
"""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    if postgres_server.binaries() is None:
        pytest.skip("no PostgreSQL server is installed")
    with postgres_server.server() as found:
        with psycopg.connect(found, autocommit=True) as connection:
            connection.execute("create table t (id int, b bytea, t text, v varchar(9), c char(7), x float8)")
            connection.execute("alter table t alter b set storage external")
            connection.execute(
                "insert into t select i, '\\x41', 'é' || i, 'v', 'c ', i / 7.0 from generate_series(1, 50) i"
            )
            connection.execute(f"insert into t values (51, decode(repeat('41', {GIANT}), 'hex'), 'x', 'v', 'c', 1)")
        yield found


def limited(where: str, query: str, nbytes: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    argv = [sys.executable, "-c", READ, where, query]
    done = run_limited(argv, nbytes, env=env, capture=True, how="cgroup", timeout_s=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])
    return done.stdout


def test_a_giant_blob_of_postgresql_is_refused_before_it_is_sent(uri):
    said = limited(uri, "select id, b from t order by id", "300MB")
    assert "REFUSED TooLarge" in said and "a value in column 'b'" in said and "pa:ss" not in said
    assert "raise the memory limit by" in said
    assert "ROWS 50" in limited(uri, "select id, b from t where id <= 50 order by id", "300MB")


def test_rows_are_the_same_and_in_order_where_sizes_are_looked_at(uri):
    query = "select * from t where id <= 50 order by x desc"
    with psycopg.connect(uri) as connection:
        wanted = connection.execute(query).fetchall()
    assert [tuple(row) for row in Database(uri).rows(query)] == wanted
    with_list = Database(uri).rows("select b, array[id] as a from t where id < 3 order by id -- read by ADBC")
    assert with_list == [(b"A", [1]), (b"A", [2])]


def test_a_giant_value_beside_a_type_that_adbc_reads_is_refused_too(uri):
    with ps.limit("300MB"), pytest.raises(TooLarge, match="column 'blob'"):
        Database(uri).rows("select array[id] as a, b as blob from t order by id")


def test_a_giant_blob_of_duckdb_is_refused_in_the_limit(tmp_path):
    path = tmp_path / "a.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("create table t as select i as id, 'A'::blob as b from range(50) r(i)")
        connection.execute("create table small as select * from t")
        connection.execute(f"insert into t select 51, repeat('A', {GIANT})::blob")
    said = limited(f"duckdb:///{path}", "select id, b from t", "300MB")
    assert "REFUSED DataError" in said and "a.duckdb" in said and "DuckDB has 7" in said
    assert "ROWS 50" in limited(f"duckdb:///{path}", "select id, b from small", "300MB")

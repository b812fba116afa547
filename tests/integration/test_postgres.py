"""read_sql on a real PostgreSQL: image blobs of several times the memory limit, and connections that are cut."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import psycopg
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server

from penstock.core.errors import DataError
from penstock.memory.jail import run_limited
from penstock.read.sql import read_sql
from penstock.sources.sql.connect import Database

pytestmark = pytest.mark.skipif(postgres_server.binaries() is None, reason="no PostgreSQL server is installed")

PHOTOS = 5000
LIMIT = 250_000_000


@pytest.fixture(scope="module")
def encrypted() -> Iterator[str]:
    with postgres_server.server(tls=True) as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            fill(connection)
        yield uri


@pytest.fixture(scope="module")
def uri(encrypted: str) -> str:
    """The same server without encryption."""
    return encrypted.replace("sslmode=require", "sslmode=disable")


def fill(connection: Any) -> None:
    """5,000 "photos" of 200 KB (JPEGs padded with what follows their end): 1 GB of blobs."""
    jpeg = cv2.imencode(".jpg", np.full((32, 32, 3), 90, np.uint8))[1].tobytes()
    connection.execute("create table photos (id bigint primary key, label int, jpeg bytea)")
    connection.execute("alter table photos alter jpeg set storage external")
    connection.execute(
        "insert into photos select i * 3, i %% 10, %s::bytea || decode(repeat(md5(i::text), 12500), 'hex') "
        "from generate_series(1, %s) i",
        (jpeg, PHOTOS),
    )
    connection.execute(
        "create table small as select i as id, i / 7.0::float8 as x, 'word ' || i as t from generate_series(1, 30000) i"
    )
    connection.execute("insert into small values (null, 0, 'nobody')")
    connection.execute("vacuum analyze photos")


CHILD = """
import sys, threading
from penstock.read.sql import read_sql

source = read_sql(sys.argv[1], "select id, label, jpeg from photos", partition_on="id", partitions=8,
                  features="jpeg", label="label", images={"jpeg": {"size": (24, 24)}}).node.step.source
seen, lock = [0, 0], threading.Lock()

def work(first):
    for unit in range(first, source.num_units(), 2):
        for block in source.open(unit):
            assert block.columns["x"].shape[1:] == (24, 24, 3)
            assert block.nbytes < 30_000_000
            with lock:
                seen[0] += len(block)
                seen[1] += int(block.columns["y"].sum())

threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print("rows", *seen)
"""


def test_blobs_of_four_times_the_limit_are_read_within_it(uri: str) -> None:
    peak, stop = [0], threading.Event()
    watcher = threading.Thread(target=watch_backends, args=(uri, peak, stop))
    watcher.start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    outcome = run_limited([sys.executable, "-c", CHILD, uri], LIMIT, env=environment, capture=True, timeout_s=120)
    stop.set()
    watcher.join()
    assert outcome.returncode == 0 and not outcome.killed, outcome.stderr
    assert outcome.stdout is not None and f"rows {PHOTOS} {PHOTOS * 9 // 2}" in outcome.stdout
    assert outcome.peak_nbytes < LIMIT
    # The server's own processes never held the result either: private memory, without the shared buffers.
    assert 0 < peak[0] < 60_000_000


def watch_backends(uri: str, peak: list[int], stop: threading.Event) -> None:
    """Keep the largest private memory of any process that serves a query of ours."""
    with psycopg.connect(uri, autocommit=True) as connection:
        while not stop.is_set():
            found = connection.execute(
                "select pid from pg_stat_activity where query like '%penstock_rows%' and pid <> pg_backend_pid()"
            )
            for (pid,) in found.fetchall():
                try:
                    memory = psutil.Process(pid).memory_info()
                    peak[0] = max(peak[0], memory.rss - memory.shared)
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.02)


def cut_connections(uri: str) -> int:
    with psycopg.connect(uri, autocommit=True) as connection:
        found = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where query like '%penstock_rows%' and pid <> pg_backend_pid()"
        )
        return len(found.fetchall())


def test_a_cut_connection_goes_on_without_loss_or_doubling(uri: str) -> None:
    source = read_sql(
        uri, "select id, label, jpeg from photos", partition_on="id", partitions=2, columns=["id"]
    ).node.step.source
    seen: list[int] = []
    cuts = 0
    for unit in range(source.num_units()):
        for number, block in enumerate(source.open(unit)):
            seen += block.columns["id"].tolist()
            if number in (1, 9):
                cuts += cut_connections(uri)
    assert cuts >= 3
    assert seen == [i * 3 for i in range(1, PHOTOS + 1)]


def test_without_a_key_a_cut_connection_is_a_clear_error(uri: str) -> None:
    source = read_sql(uri, "select * from (select id, jpeg from photos order by id) as penstock_rows").node.step.source
    blocks = source.open(0)
    next(blocks)
    assert cut_connections(uri) == 1
    with pytest.raises(DataError, match=r"lost after \d+ rows.*Give partition_on=") as caught:
        list(blocks)
    assert "pa:ss" not in str(caught.value) and "pa%3A" not in str(caught.value)


def test_ranges_types_and_missing_keys(uri: str) -> None:
    source = read_sql(
        uri, "select id, x, t, x::numeric as n, now() as moment from small", partition_on="id", partitions=5
    ).node.step.source
    assert source.num_rows() == 30001 and source.num_units() == 6
    ids: list[Any] = []
    for unit in range(6):
        for block in source.open(unit):
            ids += block.columns["id"].tolist()
            assert block.columns["n"].dtype == np.float64 and block.columns["moment"].dtype.kind == "M"
    assert ids[:-1] == list(range(1, 30001)) and np.isnan(ids[-1])
    assert "pa%3A" not in source.label + source.fingerprint()
    words = read_sql(uri, "small", partition_on="t", partitions=4).node.step.source
    assert sum(len(b) for u in range(words.num_units()) for b in words.open(u)) == 30001


EVERY_TYPE = """
    select i, i::int2 as s, i::int8 as l, i / 3.0::float4 as f, -i / 3.0::float8 as d, i % 3 = 0 as b,
        'wörd ' || i as t, repeat('x', i)::varchar(90) as v, i::text::char(6) as c,
        decode(repeat('00ff', i), 'hex') as y,
        '1999-12-30'::date + i as da, '1999-12-31 23:59:59.5'::timestamp + i * interval '1 s' as ts,
        '1999-12-31 23:59:59.5+02'::timestamptz + i * interval '1 s' as tz,
        (array[0, -1.5, 12345678.90123, 1180591620717411303424, 1e-30, 99999999999999999999.5, 'nan', 'inf', '-inf',
               10000, 0.0001, 9007199254740992, -9007199254740993.5, 123456789012345680])[i % 14 + 1]::numeric as nu
    from generate_series(0, 89) i"""


def streamed(uri: str, query: str) -> pa.Table:
    return pa.Table.from_batches(list(Database(uri).stream(query)))


@pytest.mark.parametrize("query", [
    EVERY_TYPE,
    EVERY_TYPE + " where false",
    "select case when i % 7 = 0 then null else x.i end as i, " + ", ".join(
        f"case when i % {k + 2} = 0 then null else {name} end as {name}"
        for k, name in enumerate(["s", "l", "f", "d", "b", "t", "v", "c", "y", "da", "ts", "tz", "nu"])
    ) + f" from ({EVERY_TYPE}) x",
    "select null::text as t, null::numeric as n, null::bool as b from generate_series(1, 10)",
    "select id, x, t from small order by id -- with a comment",
])  # fmt: skip
def test_our_parser_of_copy_and_adbc_read_the_same(uri: str, encrypted: str, query: str) -> None:
    theirs = pa.Table.from_batches(list(Database(uri)._adbc(query)))
    ours = streamed(uri, query)
    secret = streamed(encrypted, query)
    assert ours.schema == theirs.schema == secret.schema
    assert [repr(row) for row in secret.to_pylist()] == [repr(row) for row in ours.to_pylist()]
    for name in ours.column_names:
        a, b = ours[name].to_pylist(), theirs[name].to_pylist()
        assert [repr(v) for v in a] == [repr(v) for v in b], name  # repr: not-a-number is equal, -0.0 is not 0.0
    ours.validate(full=True)


@pytest.mark.parametrize("number", ["9007199254740993", "-1e30", "123456789012345678.00"])
def test_whole_numerics_that_a_float_would_round_are_refused_by_both_parsers(uri: str, number: str) -> None:
    query = f"select case when i = 5 then {number} else 0.5 end::numeric as nu from generate_series(1, 9) i"
    for rows in (Database(uri).stream(query), Database(uri)._adbc(query)):
        with pytest.raises(DataError, match="column 'nu' is numeric.*would round"):
            list(rows)


@pytest.mark.parametrize("kind", ["uri", "encrypted"])
def test_values_larger_than_every_buffer_and_times_without_end(kind: str, request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue(kind)
    query = (
        "select i, repeat(i::text, case when i = 3 then 5000000 else i end) as t, "
        "case when i = 2 then 'infinity' when i = 4 then '-infinity' else '2000-01-01' end::date as d, "
        "case when i = 2 then 'infinity' when i = 4 then '-infinity' else '2000-01-01' end::timestamp as s "
        "from generate_series(1, 6) i"
    )
    found = streamed(where, query)
    assert [len(t) for t in found["t"].to_pylist()] == [1, 2, 5_000_000, 4, 5, 6]
    for name in ("d", "s"):
        assert [v is None for v in found[name].to_pylist()] == [False, True, False, True, False, False]
        assert str(found[name][0]).startswith("2000-01-01")


def test_types_that_our_parser_does_not_know_are_read_by_adbc(uri: str) -> None:
    query = (
        "select i, array[i, i * 2]::float4[] as a, format('{\"k\": %s}', i)::jsonb as j from generate_series(1, 50) i"
    )
    source = read_sql(uri, query, partition_on="i", partitions=3).node.step.source
    rows = [
        row
        for unit in range(source.num_units())
        for block in source.open(unit)
        for row in map(block.row, range(len(block)))
    ]
    assert [row["i"] for row in rows] == list(range(1, 51)) and rows[9]["a"].tolist() == [10.0, 20.0]


def test_connections_are_encrypted_where_they_are_asked_to_be(uri: str, encrypted: str) -> None:
    query = "select ssl::int from pg_stat_ssl where pid = pg_backend_pid()"
    assert [Database(where).rows(query) for where in (uri, encrypted)] == [[(0,)], [(1,)]]


def test_a_connection_goes_on_after_a_mistake_and_after_a_reader_that_stopped(encrypted: str) -> None:
    database = Database(encrypted)
    with pytest.raises(DataError, match="nothing_there"):
        list(database.stream("select * from nothing_there"))
    half = database.stream("select i, repeat('x', 1000) as t from generate_series(1, 100000) i")
    next(half)
    half.close()
    assert database.rows("select 7") == [(7,)]


def test_a_query_that_fails_while_it_runs_says_what_the_server_said(uri: str) -> None:
    source = read_sql(uri, "select 1 / (5000 - i) as x from generate_series(1, 9000) i").node.step.source
    with pytest.raises(DataError, match="the query failed: ERROR: division by zero"):
        list(source.open(0))


def test_a_server_that_is_not_there_is_named_without_its_password(uri: str) -> None:
    gone = f"postgresql://tester:pa%3Ass%2Fw%40rd@127.0.0.1:{postgres_server.free_port()}/postgres"
    with pytest.raises(DataError, match=r"tester:\*\*\*@127.0.0.1:\d+/postgres: no connection in 3 tries"):
        read_sql(gone, "small").node.step.source.schema()
    with pytest.raises(DataError, match=r"the query failed.*nope"):
        read_sql(uri, "nope").node.step.source.schema()


def test_keys_with_backslashes_are_data_also_where_the_server_says_otherwise(uri: str) -> None:
    """With standard_conforming_strings off, a key such as \\' would end its quotes."""
    loose = f"{uri}{'&' if '?' in uri else '?'}options=-c%20standard_conforming_strings%3Doff"
    query = "select * from (values ('a\\'), ('b\\'' or 1=1 --'), ('c'), ('d')) as v(k)"
    safe = query.replace("'a", "E'a\\").replace("'b", "E'b\\")  # the query is the user's, in the server's own quotes
    for text in (loose,):
        source = read_sql(text, safe, partition_on="k", partitions=4).node.step.source
        found = [
            row["k"]
            for unit in range(source.num_units())
            for block in source.open(unit)
            for row in map(block.row, range(len(block)))
        ]
        assert sorted(found) == sorted(["a\\", "b\\' or 1=1 --", "c", "d"])

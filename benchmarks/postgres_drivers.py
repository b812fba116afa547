"""Ways to read PostgreSQL into Arrow batches, plain and encrypted: `python -m benchmarks.postgres_drivers`.

Covers: penstock's own, ADBC's driver, psycopg (rows of a binary cursor; a binary COPY of which nothing is made).
Does not cover: whole pipelines (sql.py). Every turn is a fresh process that connects and reads a table once; turns
alternate. The server runs on the same cores, so the reader's processor time is told besides the seconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.sql import NAMES, fill

QUERIES = {
    "40 real numbers and an integer": f"select {', '.join(NAMES)}, label from numbers",
    "numbers, text and times": "select * from mixed",
    "100 KB of bytea": "select id, data from blobs",
}

TURNS = 5


def adbc(uri: str, query: str) -> int:
    """Arrow batches as the driver makes them."""
    import adbc_driver_postgresql.dbapi as driver

    options = {"adbc.postgresql.batch_size_hint_bytes": "2000000"}
    rows = 0
    with driver.connect(uri, autocommit=True) as connection, connection.cursor(adbc_stmt_kwargs=options) as cursor:
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            rows += batch.num_rows
    return rows


def psycopg_rows(uri: str, query: str) -> int:
    """A binary server-side cursor, whose rows become Arrow columns."""
    import psycopg
    import pyarrow as pa

    rows = 0
    with psycopg.connect(uri) as connection, connection.cursor(name="rows", binary=True) as cursor:
        cursor.execute(query)
        while values := cursor.fetchmany(4096 if "data" not in query else 20):
            columns = [pa.array(column) for column in zip(*values, strict=True)]
            rows += len(columns[0])
    return rows


def psycopg_copy(uri: str, query: str) -> int:
    """The messages of a binary COPY, row by row as libpq hands them over; nothing is made of them."""
    import psycopg

    rows = -2  # head and end
    with psycopg.connect(uri) as connection, connection.cursor() as cursor:
        with cursor.copy(f"copy ({query}) to stdout (format binary)") as copy:
            for _ in copy:
                rows += 1
    return rows


def penstock(uri: str, query: str) -> int:
    """A binary COPY as libpq hands it over, parsed by penstock's kernel."""
    from penstock.sources.sql.connect import Database

    return sum(batch.num_rows for batch in Database(uri).stream(query))


WAYS: dict[str, Callable[[str, str], int]] = {
    "ADBC": adbc,
    "penstock": penstock,
    "psycopg rows": psycopg_rows,
    "psycopg COPY, not parsed": psycopg_copy,
}


def more_tables(uri: str, quick: bool) -> None:
    """Besides the numbers: rows of several types, and blobs."""
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            "create unlogged table mixed as select i, i / 7.0::float8 as x, (i %% 97)::int2 as s, "
            "'word ' || md5(i::text) as t, i %% 3 = 0 as b, (i / 100.0)::numeric(12, 2) as price, "
            "case when i %% 9 = 0 then null else timestamp '2020-01-01' + i * interval '1 minute' end as at "
            "from generate_series(1, %s) i",
            (40_000 if quick else 400_000,),
        )
        connection.execute("create unlogged table blobs (id bigint primary key, data bytea)")
        connection.execute("alter table blobs alter data set storage external")
        connection.execute(
            "insert into blobs select i, decode(repeat(md5(i::text), 6250), 'hex') from generate_series(1, %s) i",
            (200 if quick else 2000,),
        )
        connection.execute("vacuum analyze")


def child(way: str, uri: str, query: str) -> None:
    """One turn: everything that the way imports is imported before the clock starts."""
    import adbc_driver_postgresql.dbapi  # noqa: F401
    import psycopg  # noqa: F401

    read = WAYS[way]
    read(uri, query + " limit 1")
    start, used = time.perf_counter(), time.process_time()
    rows = read(uri, query)
    print(json.dumps({"s": time.perf_counter() - start, "cpu_s": time.process_time() - used, "rows": rows}))


def measure(uris: dict[str, str], turns: int) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """All turns, interleaved."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for what, query in QUERIES.items():
        for _ in range(turns):
            for kind, uri in uris.items():
                for way in WAYS:
                    command = [sys.executable, "-m", "benchmarks.postgres_drivers", "--child", way, uri, query]
                    done = subprocess.run(
                        command, check=True, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
                    )
                    found.setdefault((what, kind, way), []).append(json.loads(done.stdout))
    return found


def main() -> None:
    """Start both servers, fill them, measure, print a table."""
    from tests.integration import postgres_server

    quick = "--quick" in sys.argv
    with postgres_server.server(tls=True) as uri:
        fill(uri, 1 if quick else 6)
        more_tables(uri, quick)
        plain = uri.replace("sslmode=require", "sslmode=disable")
        found = measure({"plain": plain, "TLS": uri}, 3 if quick else TURNS)
    print("| table | connection | way | rows/s (median) | to ADBC | reader's CPU s |\n|---|---|---|---|---|---|")
    for (what, kind, way), turns in found.items():
        rate = statistics.median(turn["rows"] / turn["s"] for turn in turns)
        base = statistics.median(turn["rows"] / turn["s"] for turn in found[what, kind, "ADBC"])
        cpu = statistics.median(turn["cpu_s"] for turn in turns)
        print(f"| {what} | {kind} | {way} | {rate:,.0f} | {rate / base:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:5])
    else:
        main()

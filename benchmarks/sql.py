"""A PostgreSQL table of 40 numbers and a label -> shuffled batches of 1,024 x 40 float32.

Covers: penstock, a psycopg server-side cursor into NumPy (binary and text), ADBC's stream for information.
Does not cover: images in columns, other databases. The server runs on the same cores as the readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import Again, Build
from benchmarks.rows import BATCH, BLOCK, FEATURES, cut

if TYPE_CHECKING:
    from benchmarks.harness import Window

NAMES = [f"f{i}" for i in range(FEATURES)]
QUERY = f"select {', '.join(NAMES)}, label from numbers"


def _shuffled(path: str, **how: Any) -> Build:
    """Ranges of the key, read in parallel and shuffled."""
    import adbc_driver_postgresql.dbapi  # noqa: F401  (penstock imports both when a reader needs them)

    import penstock as ps

    def build() -> Any:
        query = QUERY.replace("label from", "label, id from")
        found = ps.read_sql(path, query, partition_on="id", features=NAMES, label="label")
        return found.shuffle(seed=1, **how).batch(BATCH, drop_last=True).repeat()

    return build


def penstock(path: str) -> Build:
    """Every pass asks the server, as the others' do."""
    return _shuffled(path, window="22MB")


def penstock_store(path: str) -> Build:
    """The default: the first pass asks the server and keeps the rows on disk, later ones read them there."""
    return _shuffled(path)


def _cursor(path: str, *, binary: bool) -> Any:
    """A server-side cursor that fetches blocks of rows, each made an array and permuted."""
    import psycopg

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        with psycopg.connect(path) as connection, connection.cursor(name="rows", binary=binary) as cursor:
            cursor.execute(QUERY)
            while rows := cursor.fetchmany(BLOCK):
                table = np.array(rows, np.float32)
                yield from cut(table[:, :FEATURES], table[:, FEATURES].astype(np.int64), rng)

    return batches


def psycopg_binary(path: str) -> Build:
    """Values sent as the database stores them."""
    loop = _cursor(path, binary=True)
    return lambda: Again(loop)


def psycopg_text(path: str) -> Build:
    """Values sent as text, which is psycopg's default."""
    loop = _cursor(path, binary=False)
    return lambda: Again(loop)


def adbc(path: str) -> Build:
    """The Arrow stream of the ADBC driver, one connection."""
    import adbc_driver_postgresql.dbapi as driver

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        with driver.connect(path) as connection, connection.cursor() as cursor:
            cursor.execute(QUERY)
            for block in cursor.fetch_record_batch():
                x = block.select(NAMES).to_tensor(row_major=True).to_numpy()
                yield from cut(x, block["label"].to_numpy().astype(np.int64), rng)

    return lambda: Again(batches)


CONTESTANTS = {
    "sql": {
        "penstock": penstock,
        "penstock, default shuffle": penstock_store,
        "psycopg cursor, binary": psycopg_binary,
        "psycopg cursor, text": psycopg_text,
        "ADBC loop": adbc,
    }
}


def fill(uri: str, chunks: int) -> int:
    """Make the table, of `chunks` chunks of rows; how many rows it has."""
    import psycopg

    from benchmarks import data

    x, y = data.chunk()
    columns = ", ".join(f"{name} real not null" for name in NAMES)
    lines = ["\t".join(map(repr, row)) + f"\t{label}\n" for row, label in zip(x.astype(float).tolist(), y.tolist())]
    text = "".join(lines)
    with psycopg.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"create unlogged table numbers (id bigserial primary key, {columns}, label integer not null)")
        for _ in range(chunks):
            with cursor.copy(f"copy numbers ({', '.join(NAMES)}, label) from stdin") as copy:
                copy.write(text)
        cursor.execute("vacuum analyze numbers")
    return len(y) * chunks


def run(options: Any) -> None:
    """Start a server, race, judge, write. Without a server to start, nothing is measured and that is said."""
    from benchmarks import report
    from benchmarks.harness import Race, race
    from tests.integration import postgres_server

    where = report.machine()
    names = list(CONTESTANTS["sql"])
    if postgres_server.binaries() is None:
        verdict = report.Verdict("`penstock` >= 2x a psycopg server-side cursor", "no PostgreSQL server here", None)
        report.write_race("sql", "PostgreSQL to batches", "", "rows", [], [verdict], where, quick=options.quick)
        return
    with postgres_server.server() as uri:
        rows = fill(uri, 2 if options.quick else 20)
        times: Window = {"warm_s": 0.3, "window_s": 1.0} if options.quick else {"warm_s": 1.0, "window_s": 4.0}
        plan = Race(
            __name__, "sql", uri, names, (BATCH, FEATURES), "float32", options.turns(4), timeout_s=120.0, **times
        )
        scores = race(plan)
    verdicts = [
        report.at_least(scores, "penstock", names[2:4], 2, "a psycopg server-side cursor into NumPy"),
        report.no_more_memory(scores, "penstock", names[2:]),
    ]
    about = (
        f"PostgreSQL on the same machine, a table of {rows:,} rows of 40 real numbers and an integer; batches of 1,024 "
        "rows, x (1024, 40) float32 and y. penstock reads ranges of the primary key and mixes them in windows (by "
        "default it keeps the rows on disk while the first pass runs, and reads them there from then on); the others "
        "read in the table's order and permute blocks of 49,152 rows. Rates include what the server takes of the "
        "cores; processor time and memory are the readers' alone."
    )
    report.write_race("sql", "PostgreSQL to batches", about, "rows", scores, verdicts, where, quick=options.quick)

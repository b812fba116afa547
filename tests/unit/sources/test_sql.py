"""read_sql on SQLite and DuckDB: ranges, blocks, images, damage, secrets."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.block import Block
from penstock.core.errors import BadData, DataError, InvalidInput, NotFound
from penstock.read.sql import read_sql
from penstock.sources.sql import source as sql_source
from penstock.sources.sql.connect import ConnectionLostError, Database, literal
from penstock.sources.sql.source import cut, last_key, row_sizes

ROWS = 2000


def read_all(source: Any) -> Block:
    return Block.concat([b for unit in range(source.num_units()) for b in source.open(unit)])


@pytest.fixture(params=["sqlite", "duckdb"])
def uri(request: Any, tmp_path: Path) -> str:
    path = tmp_path / "data.db"
    # Keys are uneven (squares) and some are missing.
    numbers = f"(with recursive n(i) as (select 0 union all select i + 1 from n where i < {ROWS - 1}) select i from n)"
    connect: Any = sqlite3.connect if request.param == "sqlite" else duckdb.connect
    connection = connect(str(path))
    connection.execute(
        f"create table t as select case when i % 100 = 99 then null else i * i end as id, i / 2.0 as x, "
        f"'it''s ' || i as word, i % 3 as y from {numbers} as numbers"
    )
    connection.commit()
    connection.close()
    return f"{request.param}:///{path}"


@pytest.mark.parametrize("partitions", [1, 7, [100, 1_000_000], 40])
def test_ranges_hold_every_row_once(uri: str, partitions: Any) -> None:
    source = read_sql(uri, "select * from t -- all", partition_on="ID", partitions=partitions).node.step.source
    whole = read_all(source)
    assert sorted(whole.columns["x"]) == [i / 2 for i in range(ROWS)]
    assert source.num_rows() in (ROWS, None)
    if partitions == 7:
        counts = [sum(len(b) for b in source.open(u)) for u in range(source.num_units())]
        assert len(counts) == 8 and max(counts[:7]) - min(counts[:7]) <= 1 and counts[7] == 20


def test_text_keys_with_quotes_are_ranges_too(uri: str) -> None:
    whole = read_all(read_sql(uri, "t", partition_on="word", partitions=5).node.step.source)
    assert sorted(whole.columns["word"].to_pylist()) == sorted(f"it's {i}" for i in range(ROWS))


def test_without_a_key_there_is_one_stream_in_the_querys_order(uri: str) -> None:
    source = read_sql(
        uri, "select x, y from t order by x desc", features=["x"], label="y", dtype="float64"
    ).node.step.source
    block = read_all(source)
    assert source.num_units() == 1 and block.tree == ("x", "y")
    assert block.columns["x"].ravel().tolist() == [i / 2 for i in reversed(range(ROWS))]


def test_parts_are_the_same_each_time_and_can_be_skipped(uri: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sql_source, "BLOCK_NBYTES", 3000)
    source = pickle.loads(pickle.dumps(read_sql(uri, "t", partition_on="id", partitions=2).node.step.source))
    whole = [b.columns["x"].tolist() for b in source.open(0)]
    assert len(whole) > 5
    for part in range(len(whole) + 1):
        assert [b.columns["x"].tolist() for b in source.open(0, part)] == whole[part:]
    assert source.fingerprint() == read_sql(uri, "t", partition_on="id", partitions=2).node.step.source.fingerprint()
    assert source.fingerprint() != read_sql(uri, "t", partition_on="id", partitions=3).node.step.source.fingerprint()


def test_image_blobs_are_decoded_and_bad_ones_named(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("create table p (id integer primary key, png blob, y integer)")
    for i in range(10):
        png = cv2.imencode(".png", np.full((8, 8, 3), i * 10, np.uint8))[1].tobytes()
        connection.execute("insert into p values (?, ?, ?)", (i, b"broken" if i == 4 else None if i == 6 else png, i))
    connection.commit()
    uri = f"sqlite:///{tmp_path}/a.db"
    options: dict[str, Any] = {
        "features": "png",
        "label": "y",
        "images": {"png": {"size": (4, 4)}},
        "partition_on": "id",
    }
    source = read_sql(uri, "p", **options, on_error="skip").node.step.source
    block = read_all(source)
    assert block.columns["y"].tolist() == [0, 1, 2, 3, 5, 7, 8, 9] and source.on_error.count == 2
    assert block.columns["x"].shape == (8, 4, 4, 3) and int(block.columns["x"][4, 0, 0, 0]) == 50
    assert str(source.schema()["x"]) == "x: uint8[4, 4, 3]" and "id = 5" in block.where(4)
    with pytest.raises(BadData, match="id = 4, column 'png'"):
        read_all(read_sql(uri, "p", **options).node.step.source)
    with pytest.raises(InvalidInput, match="needs size"):
        read_sql(uri, "p", images={"png": {}})
    with pytest.raises(NotFound, match="images= names 'jpg'"):
        read_sql(uri, "p", images={"jpg": {"size": 4}}).node.step.source.schema()


def test_mistakes_are_told_in_one_sentence(uri: str) -> None:
    with pytest.raises(DataError, match=r"the query failed.*nope"):
        read_sql(uri, "select * from nope").node.step.source.schema()
    with pytest.raises(NotFound, match=r"partition_on='key' is not a column.*id, x, word, y"):
        read_sql(uri, "t", partition_on="key").node.step.source.num_units()
    with pytest.raises(NotFound, match="no database file"):
        read_sql(uri + "x", "t").node.step.source.schema()
    for call, message in [(("mysql://x/y", "t"), "starts with postgresql"), ((uri, " "), "query must be")]:
        with pytest.raises(InvalidInput, match=message):
            read_sql(*call)
    with pytest.raises(InvalidInput, match="needs partition_on"):
        read_sql(uri, "t", partitions=4)


def test_a_database_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """Cut within its last page: SQLite itself would fill it with zeros and return rows that were never written."""
    path = tmp_path / "data.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t(id integer primary key, v real)")
        connection.executemany("insert into t values (?, ?)", [(i, i / 2) for i in range(3000)])
    connection.close()
    path.write_bytes(path.read_bytes()[:-50])
    with sqlite3.connect(path) as connection:
        assert any(v != i / 2 for i, v in connection.execute("select * from t"))
    connection.close()
    with pytest.raises(BadData, match=r"data\.db: the database is cut short: 49102 bytes"):
        read_all(read_sql(f"sqlite:///{path}", "select * from t", on_error="skip").node.step.source)


def test_an_empty_result_has_no_rows(uri: str) -> None:
    source = read_sql(uri, "select * from t where x < 0", partition_on="id").node.step.source
    assert source.num_rows() == 0 and sum(len(b) for b in source.open(0)) == 0


def test_a_password_is_never_shown() -> None:
    database = Database("postgresql://me:s3cr%21t@127.0.0.1:1/db?password=other&connect_timeout=1")
    assert database.name == "postgresql://me:***@127.0.0.1:1/db?password=***&connect_timeout=1"
    assert database.scrub("bad s3cr!t and s3cr%21t or other\nthing") == "bad *** and *** or *** thing"
    with pytest.raises(InvalidInput) as caught:
        Database("mysql://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


class Breaking(Database):
    """A real database whose connection breaks after some batches, a little later each time."""

    breaks = 0

    def stream(self, query: str, row_nbytes: int = 256) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(super().stream(query, 40_000)):
            if "order by" in query and "ntile" not in query and number >= 2 + self.breaks:
                self.breaks += 1
                raise ConnectionLostError("the server went away")
            yield batch


def test_a_lost_connection_goes_on_from_the_last_key(uri: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sql_source.time, "sleep", lambda seconds: None)
    for key in ("id", "y"):  # unique, and with hundreds of rows a key
        source = read_sql(uri, "select * from t where id is not null", partition_on=key, partitions=3).node.step.source
        whole = read_all(source).columns["x"].tolist()
        source.database = Breaking(uri)
        assert len(whole) == ROWS - 20 and sorted(read_all(source).columns["x"]) == sorted(whole)


def test_a_lost_stream_without_a_key_says_what_to_do(uri: str) -> None:
    source = read_sql(uri, "select * from t order by x").node.step.source
    source.database = Breaking(uri)
    with pytest.raises(DataError, match=r"lost after \d+ rows.*Give partition_on="):
        read_all(source)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(1, 9), min_size=1), st.integers(1, 200))
def test_cutting_depends_on_rows_alone(lengths: list[int], steps: list[int], nbytes: int) -> None:
    table = pa.RecordBatch.from_pydict({"t": pa.array(["x" * n for n in lengths], pa.string())})

    def pieces() -> Iterator[pa.RecordBatch]:
        start, turn = 0, 0
        while start < len(table):
            yield table.slice(start, steps[turn % len(steps)])
            start, turn = start + steps[turn % len(steps)], turn + 1

    found = [b.column("t").to_pylist() for _, b in cut(pieces(), nbytes)]
    assert found == [b.column("t").to_pylist() for _, b in cut(iter([table]), nbytes)]
    assert [value for piece in found for value in piece] == table.column("t").to_pylist()
    assert all(int(row_sizes(b)[:-1].sum()) < nbytes for _, b in cut(iter([table]), nbytes))
    firsts = [first for first, _ in cut(pieces(), nbytes)]
    assert firsts == [sum(map(len, found[:i])) for i in range(len(found))]


def test_the_last_key_counts_rows_over_batches() -> None:
    assert last_key(pa.array([1, 2, 2]), None, 0) == (2, 2)
    assert last_key(pa.array([2, 2]), 2, 2) == (2, 4)
    assert last_key(pa.array([3, 3]), 2, 2) == (3, 2)
    assert [literal(v) for v in (3, 1.5, "it's", b"\x01")] == ["3", "1.5", "'it''s'", "X'01'"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_duckdb_file_that_the_process_has_open_already(tmp_path: Path, read_only: bool) -> None:
    import duckdb

    path = tmp_path / "open.duckdb"
    with duckdb.connect(str(path)) as writer:
        writer.execute("create table t as select range a from range(10)")
        if not read_only:
            found = [int(sample["a"]) for sample in read_sql(f"duckdb:///{path}", "select a from t")]
            assert found == list(range(10))
    with duckdb.connect(str(path), read_only=True):
        assert len(list(read_sql(f"duckdb:///{path}", "select a from t"))) == 10


def test_keys_cannot_leave_their_quotes() -> None:
    assert literal("a\\' or 1=1 --") == "'a\\'' or 1=1 --'"  # safe where a backslash is a backslash: PLAIN_STRINGS
    assert literal(float("nan")) == "'NaN'" and literal(float("-inf")) == "'-Infinity'"
    with pytest.raises(InvalidInput, match="NUL"):
        literal("a\0b")

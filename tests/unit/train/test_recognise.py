"""Data whose name says nothing is recognised by what it holds; databases by their address or file."""

from __future__ import annotations

import sqlite3

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import InvalidInput
from penstock.read.recognise.formats import kind_of, open_any
from penstock.sources.tfrecord.write import encode_example, write_records


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)


WRITERS = {
    "parquet": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "hdf5": write_hdf5,
    "npy": lambda path: np.save(path.open("wb"), np.arange(3)),
    "npz": lambda path: np.savez(path.open("wb"), a=np.arange(3)),
    "tfrecord": lambda path: write_records(str(path), [encode_example({"x": 1.0})]),
    "jsonl": lambda path: path.write_text('{"a": 1}\n{"a": 2}\n'),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_first_bytes_tell(kind, tmp_path):
    WRITERS[kind](tmp_path / "data.bin")
    assert kind_of(str(tmp_path / "data.bin")) == kind


def test_one_json_array_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "all.json").write_text('[{"a": 1},\n {"a": 2}]')
    with pytest.raises(InvalidInput, match="one object a line.*jq"):
        kind_of(str(tmp_path / "all.json"))


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key, price real)")
        connection.executemany("insert into orders values (?, ?)", [(i, i / 2) for i in range(100)])
    return path


def test_the_only_table_of_a_database(database):
    rows = list(open_any(database))
    assert len(rows) == 100 and rows[3]["price"] == 1.5
    assert kind_of(f"sqlite:///{database}") == "sql"
    assert len(list(open_any(f"sqlite:///{database}#orders"))) == 100
    assert len(list(open_any(database, query="select price from orders where id < 7"))) == 7


def test_of_several_tables_one_must_be_named(database):
    with sqlite3.connect(database) as connection:
        connection.execute("create table people (name text)")
    with pytest.raises(InvalidInput, match="which rows are meant.*orders, people"):
        open_any(database)
    assert len(list(open_any(database, query="orders"))) == 100


def test_a_query_is_for_databases(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InvalidInput, match="A query is for databases"):
        open_any(tmp_path / "t.csv", query="orders")

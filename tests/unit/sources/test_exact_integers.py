"""Integers and booleans as the file has them: exact, also where values are missing, or a clear error."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import BadData

BIG = 2**53 + 1
Rows = list[int | None]


def parquet(path: Path, ids: Rows) -> Any:
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "n": list(range(len(ids)))}), path)
    return lambda **how: ps.read_parquet(path, **how)


def parquet_without_statistics(path: Path, ids: Rows) -> Any:
    table = pa.table({"id": pa.array(ids, pa.int64()), "n": list(range(len(ids)))})
    pq.write_table(table, path, write_statistics=False)
    return lambda **how: ps.read_parquet(path, **how)


def csv(path: Path, ids: Rows) -> Any:
    path.write_text("id,n\n" + "".join(f"{'' if i is None else i},{n}\n" for n, i in enumerate(ids)))
    return lambda **how: ps.read_csv(path, **how)


def json_lines(path: Path, ids: Rows) -> Any:
    path.write_text("".join(json.dumps({"id": i, "n": n}) + "\n" for n, i in enumerate(ids)))
    return lambda **how: ps.read_json(path, **how)


def sql(path: Path, ids: Rows) -> Any:
    connection = sqlite3.connect(path)
    connection.execute("create table t (id integer, n integer)")
    connection.executemany("insert into t values (?, ?)", [(i, n) for n, i in enumerate(ids)])
    connection.commit()
    connection.close()
    return lambda **how: ps.read_sql(f"sqlite:///{path}", "select * from t", **how)


FORMATS: list[Callable[[Path, Rows], Any]] = [parquet, parquet_without_statistics, csv, json_lines, sql]


@pytest.mark.parametrize("write", FORMATS, ids=lambda f: f.__name__)
def test_integers_are_exact(tmp_path: Path, write: Any) -> None:
    read = write(tmp_path / "a", [BIG, 2, -BIG])
    batch = next(iter(read().batch(3)))
    assert batch["id"].dtype == np.int64 and batch["id"].tolist() == [BIG, 2, -BIG]


@pytest.mark.parametrize("write", FORMATS, ids=lambda f: f.__name__)
def test_integers_with_missing_values_are_exact_or_refused(tmp_path: Path, write: Any) -> None:
    read = write(tmp_path / "a", [BIG, None, 3])
    with pytest.raises(BadData, match=r"'id'.*fill="):
        list(read().batch(3))
    filled = next(iter(read(fill={"id": -1}).batch(3)))
    assert filled["id"].dtype == np.int64 and filled["id"].tolist() == [BIG, -1, 3]


@pytest.mark.parametrize("write", [parquet, csv, json_lines, sql], ids=lambda f: f.__name__)
def test_small_integers_with_missing_values_are_floats(tmp_path: Path, write: Any) -> None:
    read = write(tmp_path / "a", [2**53, None, 3])
    found = next(iter(read().batch(3)))["id"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [2**53, np.nan, 3])


@pytest.mark.parametrize("write", [parquet, csv, json_lines, sql], ids=lambda f: f.__name__)
def test_only_the_rows_that_would_be_rounded_are_skipped(tmp_path: Path, write: Any) -> None:
    read = write(tmp_path / "a", [BIG, None, 3, -BIG, 4])
    found = next(iter(read(on_error="skip").batch(5)))
    assert found["n"].tolist() == [1, 2, 4]


def test_booleans_without_statistics_stay_booleans(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": [True, False]}), tmp_path / "a.parquet", write_statistics=False)
    assert next(iter(ps.read_parquet(tmp_path / "a.parquet").batch(2)))["b"].tolist() == [True, False]


def test_a_kernel_does_not_round_what_only_later_rows_show(tmp_path: Path) -> None:
    ids: Rows = [1, None, *range(200_000), BIG]
    read = csv(tmp_path / "a.csv", ids)
    with pytest.raises(BadData, match="'id'.*9007199254740993"):
        for _ in read().batch(1000):
            pass

"""Parquet files of other writers, and damaged ones: rows as PyArrow gives them, or one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import BadData, DataError, RaggedBatch, TooLarge
from penstock.sources.parquet import footer
from penstock.sources.parquet.footer import group_sizes, largest_page


def test_logical_types_of_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    duckdb.sql(f"copy (select uuid() u, '{{\"a\": 1}}'::json j, [uuid()] l from range(3)) to '{path}' (format parquet)")
    table = pq.read_table(path)
    found = list(ps.read_parquet(path))
    assert [sample["u"] for sample in found] == [value.bytes for value in table["u"].to_pylist()]
    assert [sample["j"] for sample in found] == ['{"a": 1}'] * 3


@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8_is_a_damaged_row(tmp_path: Path, nested: bool) -> None:
    ends, data = np.array([0, 1, 3, 4], np.int32), b"a\xff\xfeb"
    text = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text) if nested else text
    pq.write_table(pa.table({"t": column, "n": [0, 1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=r"a\.parquet, row group 0, row 1: column 't' is not UTF-8"):
        list(ps.read_parquet(tmp_path / "a.parquet"))
    found = list(ps.read_parquet(tmp_path / "a.parquet", on_error="skip"))
    assert [int(sample["n"]) for sample in found] == [0, 2]


def test_an_empty_row_group_between_others(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.string())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as out:
        for rows in (1, 0, 2):
            table = pa.table({"a": pa.array(range(rows), pa.int64()), "s": pa.array(["x"] * rows, pa.string())})
            out.write_table(table)
    assert len(list(ps.read_parquet(tmp_path / "a.parquet"))) == 3


def test_a_date_that_python_does_not_have_is_one_of_our_errors(tmp_path: Path) -> None:
    inner = pa.array([{"d": 2**31 - 1}], pa.struct([("d", pa.date32())]))
    pq.write_table(pa.table({"s": inner}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column .s. .*years 1 to 9999"):
        list(ps.read_parquet(tmp_path / "a.parquet"))


def test_whatever_arrow_raises_is_damage(tmp_path: Path, monkeypatch: Any) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("a page")

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", fails)
    with pytest.raises(BadData, match="row group 0"):
        list(ps.read_parquet(tmp_path / "a.parquet"))
    assert list(ps.read_parquet(tmp_path / "a.parquet", on_error="skip")) == []


def test_one_page_of_a_whole_column_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A page is decoded whole: slices of rows do not help where the column is one page."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.random.default_rng(1).random(30_000_000)})  # 240 MB
    pq.write_table(
        table, path, data_page_size=1 << 30, use_dictionary=False, row_group_size=1 << 30, max_rows_per_page=1 << 30
    )
    (group,) = group_sizes(str(path))
    assert largest_page(str(path), group.columns[0]) > 240_000_000
    with ps.limit("400MB"), pytest.raises(TooLarge, match="MB"):
        for _ in ps.read_parquet(path).batch(1000):
            pass


def test_one_huge_row_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [b"x" * 200_000_000, b"y"]}), path, compression="zstd")
    with ps.limit("400MB"), pytest.raises(TooLarge, match="MB"):
        for _ in ps.read_parquet(path).batch(1):
            pass


def test_a_huge_row_of_a_remote_file_is_refused_too(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    pq.write_table(pa.table({"x": [b"x" * 200_000_000, b"y"], "y": [1, 2]}), tmp_path / "a.parquet", compression="zstd")
    fsspec.filesystem("memory").pipe("/parquet-odd/a.parquet", (tmp_path / "a.parquet").read_bytes())
    with ps.limit("400MB"), pytest.raises(TooLarge, match="MB"):
        for _ in ps.read_parquet("memory://parquet-odd/a.parquet").batch(1):
            pass


def test_a_huge_row_behind_many_small_pages_of_a_remote_file_is_refused(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    rows = [bytes(2000)] * 30_000 + [b"x" * 200_000_000]
    pq.write_table(pa.table({"x": rows}), tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    data = (tmp_path / "a.parquet").read_bytes()
    fsspec.filesystem("memory").pipe("/parquet-odd/late.parquet", data)
    (group,) = group_sizes(str(tmp_path / "a.parquet"))
    assert largest_page(str(tmp_path / "a.parquet"), group.columns[0], 8, 1 << 40) < 10_000_000  # the first eight
    with ps.limit("400MB"), pytest.raises(TooLarge, match="MB"):
        for _ in ps.read_parquet("memory://parquet-odd/late.parquet").batch(1):
            pass


def test_pages_that_break_the_footers_promise_are_damage(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(5_000_000)}), path, use_dictionary=False)
    column = group_sizes(str(path))[0].columns[0]
    lying = footer.ColumnSizes(column.path, column.stored, 1000, None, column.offset)
    with pytest.raises(BadData, match="larger than the 1000 bytes"):
        largest_page(str(path), lying)


@pytest.mark.parametrize("rows", [[[1, 2], None, [3, 4]], [None, [1, 2], [3, 4]], [[1, 2], None, [3]]])
def test_a_missing_list_is_refused_in_a_batch_wherever_it_is(tmp_path: Path, rows: list[Any]) -> None:
    pq.write_table(pa.table({"x": pa.array(rows)}), tmp_path / "a.parquet")
    ds = ps.read_parquet(tmp_path / "a.parquet")
    with pytest.raises(RaggedBatch, match=rf"'x' has a missing list in row {rows.index(None)} .*filter.*pad="):
        list(ds.batch(3))
    (padded,) = ds.batch(3, pad=-1)
    assert padded["x"].tolist() == [[*(row or []), -1, -1][:2] for row in rows]
    kept = ds.filter(lambda row: row["x"] is not None)
    assert [batch["x"].tolist() for batch in kept.batch(1)] == [[row] for row in rows if row]

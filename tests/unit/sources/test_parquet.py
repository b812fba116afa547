from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged
from penstock.core.source import OnError, UnitSource
from penstock.read.parquet import read_parquet
from penstock.sources.parquet.source import ParquetSource
from penstock.sources.tables.blocks import TableShape


def made(rows: int = 1000, start: int = 0) -> pa.Table:
    n = np.arange(start, start + rows)
    return pa.table(
        {
            "n": n,
            "f": (n / 3).astype(np.float32),
            "g": (n * 2).astype(np.float32),
            "s": pa.array([f"row {i}" for i in n]),
            "c": pa.array([["red", "blue"][i % 2] for i in n]).dictionary_encode(),
            "l": pa.array([list(range(i % 3)) for i in n], pa.list_(pa.int64())),
        }
    )


def source_of(path: Path, table: pa.Table, shape: TableShape | None = None, **options: Any) -> ParquetSource:
    pq.write_table(table, path, row_group_size=options.pop("row_group_size", 100))
    return ParquetSource([str(path)], shape or TableShape(), **options)


def whole(source: ParquetSource) -> Block:
    return Block.concat([block for unit in range(source.num_units()) for block in source.open(unit)])


def test_rows_come_back_with_lists_text_and_categories(tmp_path: Path) -> None:
    table = made()
    source = source_of(tmp_path / "t.parquet", table)
    block = whole(source)
    assert isinstance(source, UnitSource)
    assert source.num_rows() == len(block) == 1000
    assert block.columns["n"].tolist() == list(range(1000))
    assert block.columns["s"].to_pylist() == table["s"].to_pylist()
    assert block.columns["c"].to_pylist() == table["c"].to_pylist()
    assert block.columns["l"].to_pylist() == table["l"].to_pylist()
    assert block.schema == source.schema()


def test_small_row_groups_are_read_together_and_large_ones_alone(tmp_path: Path) -> None:
    assert source_of(tmp_path / "t.parquet", made()).num_units() == 1
    big = pa.table({"x": np.random.default_rng(0).standard_normal(400_000)})
    source = source_of(tmp_path / "b.parquet", big, row_group_size=200_000)
    assert source.num_units() == 2
    np.testing.assert_array_equal(whole(source).columns["x"], big["x"].to_numpy())


def test_giant_row_groups_come_in_slices_and_resume(tmp_path: Path) -> None:
    table = made(20_000)
    source = source_of(tmp_path / "t.parquet", table, row_group_size=20_000, block_nbytes=50_000)
    blocks = list(source.open(0))
    assert source.num_units() == 1 and len(blocks) > 5
    at_once = int(source.survey.stored[0] + 2 * source.survey.decoded[0])
    assert source.unit_nbytes(0) < at_once
    assert max(b.nbytes for b in blocks) < 2 * 50_000
    assert Block.concat(blocks).columns["n"].tolist() == list(range(20_000))
    rest = list(source.open(0, 3))
    assert [len(b) for b in rest] == [len(b) for b in blocks[3:]]
    assert rest[0].columns["n"][0] == blocks[3].columns["n"][0]
    assert rest[0].where(0).endswith(f"row group 0, row {blocks[3].columns['n'][0]}")


def test_features_are_a_row_major_matrix_and_only_they_are_read(tmp_path: Path) -> None:
    source = source_of(tmp_path / "t.parquet", made(), TableShape(features=["f", "g"], label="n"))
    block = whole(source)
    assert source.survey.columns == ["f", "g", "n"]
    assert block.columns["x"].shape == (1000, 2) and block.columns["x"].dtype == np.float32
    np.testing.assert_array_equal(block.columns["x"][:, 1], np.arange(1000) * 2)
    assert block.columns["y"].tolist() == list(range(1000))


@pytest.mark.parametrize("filters", [[("n", ">=", 950)], pc.field("n") >= 950], ids=["list", "expression"])
def test_filters_skip_row_groups_and_are_exact(tmp_path: Path, filters: Any) -> None:
    shape = TableShape(columns=["s"])
    source = source_of(tmp_path / "t.parquet", made(), shape, filters=filters)
    block = whole(source)
    assert source.num_rows() is None
    assert int(source.survey.rows.sum()) == 100
    assert list(block.columns) == ["s"]
    assert block.columns["s"].to_pylist() == [f"row {i}" for i in range(950, 1000)]
    assert block.where(0).endswith("row 50")


def test_filters_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="filters= must be"):
        source_of(tmp_path / "t.parquet", made(), filters=[("n", "~~", 3)])
    with pytest.raises(NotFound, match="filters= cannot be used"):
        source_of(tmp_path / "t.parquet", made(), filters=[("zzz", ">", 3)]).num_units()


def test_integers_with_missing_values_are_floats_in_every_block(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2, None, 4]), "m": pa.array([1, 2, 3, 4])})
    source = source_of(tmp_path / "t.parquet", table, row_group_size=2)
    assert source.schema()["n"].dtype == np.float64 and source.schema()["m"].dtype == np.int64
    np.testing.assert_array_equal(whole(source).columns["n"], [1, 2, np.nan, 4])


def test_files_must_agree(tmp_path: Path) -> None:
    pq.write_table(made(10), tmp_path / "1.parquet")
    pq.write_table(made(10).drop_columns(["g"]), tmp_path / "2.parquet")
    pq.write_table(made(10).set_column(0, "n", pa.array(["x"] * 10)), tmp_path / "3.parquet")
    paths = [str(tmp_path / f"{i}.parquet") for i in (1, 2, 3)]
    source = ParquetSource(paths, TableShape())
    with pytest.raises(SchemaChanged, match=r"2.parquet has no column 'g', which .*1.parquet"):
        list(source.open(1))
    with pytest.raises(SchemaChanged, match=r"Column 'n' is string in .*3.parquet but int64 in .*1.parquet"):
        list(source.open(2))
    projected = ParquetSource(paths[:2], TableShape(columns=["n"]))
    assert len(whole(projected)) == 20


@pytest.mark.parametrize("rows", [100, 20_000], ids=["whole", "in parts"])
@pytest.mark.parametrize("filters", [None, [("a", ">", -1)]], ids=["all", "filtered"])
def test_columns_in_another_order_are_found_by_name(tmp_path: Path, rows: int, filters: Any) -> None:
    names = [*"abcdefghij"]
    table = pa.table({name: np.full(rows, i, np.float32) for i, name in enumerate(names)} | {"y": np.arange(rows)})
    pq.write_table(table, tmp_path / "1.parquet")
    pq.write_table(table.select([*reversed(names), "y"]), tmp_path / "2.parquet")
    paths = [str(tmp_path / f"{i}.parquet") for i in (1, 2)]
    both = whole(ParquetSource(paths, TableShape(label="y"), filters=filters))
    assert (both.columns["x"] == np.arange(10)).all() and len(both) == 2 * rows
    pq.write_table(table.append_column("new", table["a"]), tmp_path / "2.parquet")
    with pytest.raises(SchemaChanged, match=r"2.parquet has a column 'new', which .*1.parquet has not. Name those"):
        whole(ParquetSource(paths, TableShape(label="y"), filters=filters))
    named = whole(ParquetSource(paths, TableShape(features=names, label="y"), filters=filters))
    assert (named.columns["x"] == np.arange(10)).all()


@pytest.mark.parametrize("told", [("s", ">", 3), ("s", "in", [3]), ("l", "==", [3])], ids=str)
@pytest.mark.parametrize("columns", [None, ["n"]], ids=["all", "projected"])
def test_a_filter_of_another_type_is_one_sentence(tmp_path: Path, told: Any, columns: list[str] | None) -> None:
    source = source_of(tmp_path / "t.parquet", made(), TableShape(columns=columns), filters=[told])
    with pytest.raises(InvalidInput, match=r"filters= do not fit the columns of .*t.parquet: "):
        source.num_units()


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1, 2], [3, 4], [5, 6]], names=["a", "b", "a"]), tmp_path / "t.parquet")
    with pytest.raises(BadData, match=r"t.parquet: has several columns named 'a'"):
        ParquetSource([str(tmp_path / "t.parquet")], TableShape()).schema()
    block = whole(ParquetSource([str(tmp_path / "t.parquet")], TableShape(columns=["b"])))
    assert block.columns["b"].tolist() == [3, 4]


def test_damage_names_file_and_row_group(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    big = pa.table({"x": np.random.default_rng(0).standard_normal(600_000)})
    pq.write_table(big, path, row_group_size=200_000, compression="zstd")
    raw = bytearray(path.read_bytes())
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    raw[place : place + 40] = b"\xff" * 40
    path.write_bytes(raw)
    with pytest.raises(BadData, match=r"t.parquet, row group 1: cannot be read"):
        whole(ParquetSource([str(path)], TableShape()))
    policy = OnError("skip")
    assert len(whole(ParquetSource([str(path)], TableShape(), on_error=policy))) == 400_000
    assert policy.count == 1
    path.write_bytes(raw[:-100])
    with pytest.raises(BadData, match="not a readable Parquet file"):
        ParquetSource([str(path)], TableShape()).schema()
    with pytest.raises(NotFound, match=r"has no column 'q'. There are: n, f"):
        source_of(tmp_path / "u.parquet", made(), TableShape(features=["q"])).schema()


def test_a_source_survives_pickling_and_reads_the_same(tmp_path: Path) -> None:
    source = source_of(tmp_path / "t.parquet", made(), filters=[("n", "<", 7)])
    list(source.open(0))
    copied = pickle.loads(pickle.dumps(source))
    assert whole(copied).columns["n"].tolist() == list(range(7))
    assert copied.fingerprint() == source.fingerprint()


def test_read_parquet_end_to_end(tmp_path: Path) -> None:
    for i in range(3):
        pq.write_table(made(50, i * 50), tmp_path / f"{i}.parquet")
    batches = list(read_parquet(tmp_path, features=["f", "g"], label="n").batch(60))
    assert [len(y) for _, y in batches] == [60, 60, 30]
    coded = list(read_parquet(tmp_path / "*.parquet", columns=["c"], categories={"c": ["red", "blue"]}).batch(150))
    assert coded[0]["c"].tolist() == [0, 1] * 75

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.source import OnError
from penstock.sources.tables.blocks import TableShape

TABLE = pa.table(
    {
        "a": pa.array([1, 2, 3]),
        "b": pa.array([1.5, None, 2.5]),
        "s": pa.array(["x", None, "z"]),
        "c": pa.array(["u", "v", "u"]).dictionary_encode(),
        "day": pa.array([0, 1, None], pa.date32()),
        "at": pa.array([dt.datetime(2020, 1, 1)] * 3, pa.timestamp("us", "UTC")),
        "list": pa.array([[1, 2], [3], []]),
        "fixed": pa.array([[1.0, 2.0], None, [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "flag": pa.array([True, False, True]),
        "price": pa.array([1, 2, 3]).cast(pa.decimal128(24, 2)),
    }
)


def test_samples_are_dicts_of_columns_by_default() -> None:
    block = TableShape().block(TABLE)
    assert block.tree == {name: name for name in TABLE.column_names}
    assert block.columns["a"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(block.columns["b"], [1.5, np.nan, 2.5])
    assert block.columns["s"].to_pylist() == ["x", None, "z"]
    assert block.columns["c"].to_pylist() == ["u", "v", "u"]
    assert block.columns["day"].dtype == "datetime64[D]" and np.isnat(block.columns["day"][2])
    assert block.columns["at"].dtype == "datetime64[us]"
    assert block.columns["list"].to_pylist() == [[1, 2], [3], []]
    np.testing.assert_array_equal(block.columns["fixed"], np.float32([[1, 2], [np.nan, np.nan], [5, 6]]))
    assert block.columns["flag"].dtype == bool
    assert block.columns["price"].tolist() == [1.0, 2.0, 3.0]


def test_the_schema_is_that_of_the_block() -> None:
    for shape in (
        TableShape(),
        TableShape(features=["a", "b"], label="flag"),
        TableShape(features=["a", "s"], label=["a", "b"]),
        TableShape(label="a", columns=["a", "b", "flag"], dtype="float64"),
        TableShape(features="s"),
        TableShape(features="b", dtype="float32"),
    ):
        assert shape.schema(TABLE.schema) == shape.block(TABLE).schema


def test_numeric_features_are_one_row_major_matrix() -> None:
    block = TableShape(features=["b", "a", "flag"], label="a").block(TABLE)
    x = block.columns["x"]
    assert block.tree == ("x", "y") and x.dtype == np.float32 and x.flags.c_contiguous
    np.testing.assert_array_equal(x, np.float32([[1.5, 1, 1], [np.nan, 2, 0], [2.5, 3, 1]]))
    assert block.columns["y"].dtype == np.int64


def test_the_matrix_of_a_slice_holds_the_slice() -> None:
    block = TableShape(features=["a", "b"]).block(TABLE.slice(1, 2))
    np.testing.assert_array_equal(block.columns["x"], np.float32([[2, np.nan], [3, 2.5]]))
    np.testing.assert_array_equal(TableShape().block(TABLE.slice(2, 1)).columns["fixed"], np.float32([[5, 6]]))


def test_other_features_are_a_dict_and_label_alone_takes_the_rest() -> None:
    mixed = TableShape(features=["a", "s"], label="c").block(TABLE)
    assert mixed.tree == ({"a": "x.a", "s": "x.s"}, "y")
    plain = TableShape(features=["a", "b"], matrix=False).block(TABLE)
    assert plain.tree == {"a": "x.a", "b": "x.b"}
    rest = TableShape(label="a", columns=["a", "b", "flag"]).block(TABLE)
    assert rest.columns["x"].shape == (3, 2)


def test_an_empty_table_keeps_its_columns() -> None:
    shape = TableShape(features=["a", "b"], label="s")
    block = shape.block(TABLE.slice(0, 0))
    assert len(block) == 0 and block.columns["x"].shape == (0, 2)


def test_missing_integers_become_floats_or_are_filled() -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    np.testing.assert_array_equal(TableShape().block(table).columns["n"], [1.0, np.nan, 3.0])
    filled = TableShape(fill={"n": -1}).block(table).columns["n"]
    assert filled.dtype == np.int64 and filled.tolist() == [1, -1, 3]
    wide = TableShape(nullable=frozenset({"n"}))
    assert wide.schema(table.schema)["n"].dtype == np.float64
    assert wide.block(table.slice(0, 1)).columns["n"].dtype == np.float64


def test_a_missing_integer_that_was_not_announced_is_damage() -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    shape = TableShape(nullable=frozenset())
    with pytest.raises(BadData, match=r"row 1 of f.*'n'.*fill="):
        shape.block(table, lambda i: f"row {i} of f")
    policy = OnError("skip")
    block = shape.block(table, lambda i: f"row {i} of f", policy)
    assert block.columns["n"].tolist() == [1, 3] and policy.count == 1 and block.where(1) == "row 2 of f"


def test_categories_are_positions_in_their_list() -> None:
    block = TableShape(features=["a", "c"], label="s", categories={"c": ["v", "u"], "s": ["x", "z"]}).block(TABLE)
    np.testing.assert_array_equal(block.columns["x"], np.float32([[1, 1], [2, 0], [3, 1]]))
    assert block.columns["y"].dtype == np.int32 and block.columns["y"].tolist() == [0, -1, 1]
    with pytest.raises(BadData, match=r"'c'.*not in its categories.*'v'"):
        TableShape(categories={"c": ["u"]}).block(TABLE)


def test_errors_say_which_column_and_what_there_is() -> None:
    with pytest.raises(NotFound, match=r"t.csv has no column 'q'. There are: a, b"):
        TableShape(features=["a", "q"]).schema(TABLE.schema, "t.csv")
    with pytest.raises(InvalidInput, match=r"matrix=True, but column 's' is string"):
        TableShape(features=["a", "s"], matrix=True).schema(TABLE.schema)
    with pytest.raises(InvalidInput, match="empty list"):
        TableShape(features=[])
    assert TableShape(features=["a"], label="b").columns_needed == ["a", "b"]
    assert TableShape(label="b").columns_needed is None

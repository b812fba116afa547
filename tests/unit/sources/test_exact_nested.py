"""Integers, dates and times inside of lists, structs and decimals: exact, or refused by name."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import BadData, SchemaChanged
from penstock.sources.tables.nested import with_leaves

FAR = 2_932_896 + 1000
"""A day some years after 9999-12-31."""


def rows(path: Path, array: pa.Array, **options: Any) -> list[Any]:
    pq.write_table(pa.table({"a": array}), path)
    return [sample["a"] for sample in ps.read_parquet(path, **options)]


LISTS = [
    pa.array([[1, None, 2**53 + 1], [3]]),
    pa.array([[1, None], [3, 4]], pa.list_(pa.int64(), 2)),
    pa.array([[[1, None], [2, 3]], [[3, 4]]]),
    pa.array([[True, None], [False]]),
]


@pytest.mark.parametrize("lists", LISTS, ids=["list", "fixed", "nested", "bool"])
def test_a_missing_integer_inside_of_a_list_is_refused_or_filled(tmp_path: Path, lists: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(BadData, match=r"row 0: column 'a' \(.*has a missing value inside of a list.*fill="):
        rows(path, lists)
    assert len(rows(path, lists, on_error="skip")) == 1
    nothing = False if pa.types.is_boolean(lists.type.value_type) else 0
    found = rows(path, lists, fill={"a": nothing})
    wanted = with_leaves(lists, lambda leaf: leaf.fill_null(nothing)).to_pylist()
    assert [np.asarray(value).tolist() for value in found] == wanted


def test_lists_that_are_missing_stay_so_when_values_are_filled(tmp_path: Path) -> None:
    lists = pa.array([[1], None, [None, 2**60 + 1]]).slice(1)
    assert with_leaves(lists, lambda leaf: leaf.fill_null(7)).to_pylist() == [None, [7, 2**60 + 1]]


def test_dates_in_structs_that_python_has_not_are_damaged_rows(tmp_path: Path) -> None:
    kind = pa.struct([("d", pa.date32()), ("n", pa.int64())])
    array = pa.array([{"d": 0, "n": 2**60 + 1}, {"d": FAR, "n": 1}], kind)
    with pytest.raises(BadData, match=r"row 1: column 'a' .*years 1 to 9999"):
        rows(tmp_path / "a.parquet", array)
    assert rows(tmp_path / "a.parquet", array, on_error="skip") == [{"d": datetime.date(1970, 1, 1), "n": 2**60 + 1}]
    assert rows(tmp_path / "a.parquet", pa.array([FAR], pa.date32())) == [np.datetime64(FAR, "D")]


def test_time_of_day_is_a_duration_since_midnight_in_lists_too(tmp_path: Path) -> None:
    time, wanted = datetime.time(1, 2, 3, 4), np.timedelta64(3_723_000_004, "us")
    assert rows(tmp_path / "a.parquet", pa.array([time])) == [wanted]
    (found,) = rows(tmp_path / "a.parquet", pa.array([[time, None]]))
    assert found[0] == wanted and np.isnat(found[1]) and found.dtype == "timedelta64[us]"


def test_whole_decimals_are_exact_or_refused(tmp_path: Path) -> None:
    small = pa.array([decimal.Decimal(10**17 + 1), decimal.Decimal(-3)], pa.decimal128(18, 0))
    assert rows(tmp_path / "a.parquet", small) == [10**17 + 1, -3]
    large = pa.array([decimal.Decimal(2**53 + 1), decimal.Decimal(4)], pa.decimal128(38, 0))
    with pytest.raises(BadData, match=r"row 0: column 'a' is decimal128\(38, 0\).*CAST"):
        rows(tmp_path / "a.parquet", large)
    assert rows(tmp_path / "a.parquet", large, on_error="skip") == [4.0]
    assert rows(tmp_path / "a.parquet", pa.array([decimal.Decimal("1.25")])) == [1.25]


def test_json_integers_beyond_int64_name_the_type_that_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": {2**63}}}\n{{"a": 1}}\n')
    with pytest.raises(SchemaChanged, match=r"field 'a'.*9223372036854775808.*'uint64' holds it.*dtypes="):
        list(ps.read_json(path))
    assert [sample["a"] for sample in ps.read_json(path, dtypes={"a": "uint64"})] == [2**63, 1]
    path.write_text(f'{{"a": [1, null, {2**53 + 1}]}}\n')
    with pytest.raises(BadData, match=r"byte 0: column 'a'.*inside of a list"):
        list(ps.read_json(path))

"""Decimals are the floats that Python makes of them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sources.tables.decimals import nearest_floats


def as_floats(values: list[Decimal | None]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


@given(
    st.lists(st.one_of(st.none(), st.integers(-(10**25), 10**25), st.integers(-(10**9), 10**9)), max_size=30),
    st.integers(0, 25),
    st.integers(0, 3),
)
def test_floats_are_the_nearest(whole, scale, start):
    values = [None if n is None else Decimal(n).scaleb(-scale) for n in whole]
    array = pa.array(values, pa.decimal128(38, scale)).slice(start)
    found = nearest_floats(array)
    found.validate(full=True)
    assert found.to_pylist() == as_floats(values[start:])


@pytest.mark.parametrize("kind", [pa.decimal32(9, 3), pa.decimal64(18, 3), pa.decimal128(38, 3), pa.decimal256(76, 3)])
def test_parquet_columns_of_every_width(tmp_path, kind):
    values = [Decimal("1003.858"), Decimal("-999.900"), None, Decimal("7712.480")]
    array = pa.array(values, pa.decimal128(38, 3)).cast(kind)
    pq.write_table(pa.table({"x": array}), tmp_path / "a.parquet")
    found = [row["x"] for row in ps.read_parquet(tmp_path / "a.parquet")]
    assert [None if x != x else float(x) for x in found] == as_floats(values)

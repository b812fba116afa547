"""Times stored as INT96: those that nanoseconds hold are read, others are refused by name instead of wrapped around."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import DataError

NEVER = datetime.datetime(9999, 12, 31)
USUAL = [datetime.datetime(2020, 1, 1, 12, 30, 1, 250_000), datetime.datetime(1969, 7, 20), None]


def write(path: Path, times: pa.Array) -> str:
    table = pa.table({"n": pa.array(range(len(times))), "t": times})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2)
    return str(path)


def test_times_are_those_of_pyarrow(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.array(USUAL, pa.timestamp("us")))
    found = np.concatenate([batch["t"] for batch in ps.read_parquet(path).batch(2)])
    expected = pq.read_table(path)["t"].to_numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("nested", ["plain", "list", "struct"])
def test_a_time_beyond_nanoseconds_is_refused_by_name(tmp_path: Path, nested: str) -> None:
    times = pa.array([*USUAL[:2], NEVER, USUAL[0]], pa.timestamp("us"))
    if nested == "list":
        times = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), times)
    elif nested == "struct":
        times = pa.StructArray.from_arrays([times], ["inside"])
    path = write(tmp_path / "a.parquet", times)
    with pytest.raises(DataError, match=r"row group 0.*'t' holds a time before 1677 or after 2262"):
        list(ps.read_parquet(path))


def test_a_column_that_is_left_out_does_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.array([NEVER, NEVER], pa.timestamp("us")))
    assert [row["n"] for row in ps.read_parquet(path, columns=["n"])] == [0, 1]

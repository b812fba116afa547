"""Numbers of Arrow arrays: what PyArrow's own conversion gives, without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from penstock.core.arrow_numbers import numbers

KINDS = [
    *(pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.date32(), pa.date64(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.duration("ms")),
]


def array_of(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else v % 3 == 0 for v in values], kind)
    if pa.types.is_date64(kind):
        return pa.array([None if v is None else v * 86_400_000 for v in values], pa.int64()).cast(kind)
    return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "values", [[*range(21)], [], [1, None, 3, 4, None, 6, 7, 8, 9, 10]], ids=["whole", "empty", "missing"]
)
def test_they_are_what_pyarrow_gives(kind: pa.DataType, values: list[Any]) -> None:
    array = array_of(kind, values)
    for part in (array, array.slice(3), array.slice(2, 7), array.slice(0, 0)):
        found, expected = numbers(part), part.to_numpy(zero_copy_only=False)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_arrows_memory_is_seen_not_copied_and_read_only() -> None:
    array = pa.array(np.arange(1000.0))
    found = numbers(array.slice(10))
    assert found.ctypes.data == array.buffers()[1].address + 80
    assert not found.flags.writeable
    del array
    assert found.sum() == np.arange(10, 1000).sum()


def test_a_table_is_read_without_pandas(tmp_path) -> None:
    """A new process reads Parquet and CSV: pandas would come with PyArrow's conversion, if it is there."""
    pytest.importorskip("pandas")
    table = pa.table({"a": np.arange(9000.0), "b": np.arange(9000.0), "y": np.arange(9000)})
    pq.write_table(table, tmp_path / "t.parquet")
    csv.write_csv(table, tmp_path / "t.csv")
    script = f"""
import sys
import penstock as ps
for ds in (ps.read_parquet(r"{tmp_path}/t.parquet", label="y"), ps.read_csv(r"{tmp_path}/t.csv", label="y")):
    assert sum(len(x) for x, _ in ds.shuffle(seed=1).batch(64)) == 9000
    print("pandas" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]

"""Arrow arrays to NumPy and back: what PyArrow's own conversion gives, without pandas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from penstock.core.arrow_numbers import arrow_of, numbers
from penstock.sources.tfrecord.write import encode_example, write_records

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


@pytest.mark.parametrize(
    "values", [["a", "", "zwölf"], [b"a", b"", b"\xff"], ["a", None, "c"]], ids=["text", "bytes", "missing"]
)
def test_text_and_bytes_become_objects(values: list[Any]) -> None:
    array = pa.array([values[0], *values])
    for part in (array, array.slice(1), array.slice(2, 1), array.cast(f"large_{array.type}")):
        found = numbers(part)
        assert found.dtype == object
        assert found.tolist() == part.to_pylist()


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f2", "f4", "f8"])
def test_numbers_become_arrow_arrays(dtype: str) -> None:
    array = np.arange(20).astype(dtype)
    for part in (array, array[::-2], array[:0]):
        assert arrow_of(part).equals(pa.array(np.ascontiguousarray(part)))


def test_files_are_read_without_pandas(tmp_path: Path) -> None:
    """A new process reads every kind of table: pandas would come with PyArrow's conversion, if it is there."""
    pytest.importorskip("pandas")
    count = 900
    table = pa.table({"a": np.arange(count) / 7, "b": np.arange(count) / 3, "y": np.arange(count)})
    texts = table.append_column("t", pa.array([f"word {k % 9}" for k in range(count)]))
    for name, rows in (("numbers", table), ("texts", texts)):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        csv.write_csv(rows, tmp_path / f"{name}.csv")
        listed = rows.to_pylist()
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
        write_records(str(tmp_path / f"{name}.tfrecord"), map(encode_example, listed))
    (tmp_path / "lines.txt").write_text("\n".join(f"line {k}" for k in range(count)))
    script = f"""
import sys
import penstock as ps
for kind in ("numbers", "texts"):
    for read, suffix in ((ps.read_parquet, "parquet"), (ps.read_csv, "csv"), (ps.read_json, "jsonl"),
                         (ps.read_tfrecords, "tfrecord")):
        ds = read(r"{tmp_path}/" + kind + "." + suffix, label="y").shuffle(seed=1).batch(64)
        assert sum(len(y) for _, y in ds) == {count}
        print(kind, suffix, "pandas" in sys.modules)
assert sum(len(batch["text"]) for batch in ps.read_text(r"{tmp_path}/lines.txt").shuffle(seed=1).batch(64)) == {count}
print("lines", "txt", "pandas" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = ran.stdout.splitlines()
    assert len(told) == 9
    assert [line for line in told if line.endswith("True")] == []

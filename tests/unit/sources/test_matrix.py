"""Columns side by side: by the kernel and by Arrow, with the same bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import BadData, InvalidInput
from penstock.core.source import OnError
from penstock.sources.parquet.source import ParquetSource
from penstock.sources.tables import matrix
from penstock.sources.tables.blocks import TableShape

ROWS = 5003


def columns(rows: int = ROWS, *, missing: bool = True) -> list[pa.Array]:
    rng = np.random.default_rng(0)
    holes = rng.random(rows) < (0.1 if missing else 0)
    wide = rng.integers(-(2**62), 2**62, rows)
    return [
        pa.array(rng.normal(size=rows) * 1e30, mask=holes),
        pa.array(rng.normal(size=rows).astype(np.float32)),
        pa.array(wide),
        pa.array(wide.astype(np.int32)),
        pa.array(wide.astype(np.uint8), mask=holes),
        pa.array(wide % 2 == 0),
        pa.array(rng.normal(size=rows + 7)).slice(7),
    ] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_kernel_gives_arrows_bits(dtype: str) -> None:
    kind = np.dtype(dtype)
    arrays = columns(missing=kind.kind == "f")
    assert matrix.is_laid(kind)
    found = matrix.side_by_side(arrays, kind)
    expected = matrix._by_arrow(arrays, pa.from_numpy_dtype(kind), kind)
    assert found.shape == (ROWS, len(arrays)) and found.dtype == kind and found.flags.c_contiguous
    assert found.tobytes() == expected.tobytes()


def test_columns_are_laid_where_they_belong() -> None:
    arrays = columns()
    out = np.full((ROWS, len(arrays) + 5), 7, np.float32)
    matrix.lay(arrays[:9], out, 2)
    matrix.lay(arrays[9:], out, 11)
    whole = matrix._by_arrow(arrays, pa.float32(), np.dtype(np.float32))
    assert out[:, 2 : 2 + len(arrays)].tobytes() == whole.tobytes()
    assert (out[:, :2] == 7).all() and (out[:, -3:] == 7).all()


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="matrix of 5003"):
        matrix.lay(columns(ROWS - 1), np.empty((ROWS, 21), np.float32), 0)


def test_missing_integers_are_refused() -> None:
    arrays = [pa.array([1, None] * ROWS)] * 20
    with pytest.raises(pa.ArrowException):
        matrix.side_by_side(arrays, np.dtype(np.int64))


def table(rows: int) -> pa.Table:
    made = {f"f{i}": column for i, column in enumerate(columns(rows))}
    return pa.table({**made, "kind": pa.array(["a", "b", "c", "?"] * (rows // 4)), "y": pa.array(np.arange(rows))})


def test_a_row_group_read_in_parts_is_the_table(tmp_path) -> None:
    rows = table(8000)
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=4000)
    shape = TableShape(label="y", features=[f"f{i}" for i in range(21)])
    source = ParquetSource([str(tmp_path / "t.parquet")], shape)
    assert source.num_units() == 1 or all(source.one_block(u) for u in range(source.num_units()))
    blocks = [block for unit in range(source.num_units()) for block in source.open(unit)]
    whole = source.shape_bound.block(rows)
    assert np.concatenate([b.columns["x"] for b in blocks]).tobytes() == whole.columns["x"].tobytes()
    assert np.concatenate([b.columns["y"] for b in blocks]).tolist() == list(range(8000))


def test_rows_that_are_left_out_are_left_out_of_the_matrix_too(tmp_path) -> None:
    rows = table(4000)
    pq.write_table(rows, tmp_path / "t.parquet")
    shape = TableShape(label="kind", features=[f"f{i}" for i in range(21)], categories={"kind": ["a", "b", "c"]})
    skipping = OnError("skip")
    source = ParquetSource([str(tmp_path / "t.parquet")], shape, on_error=skipping)
    (block,) = source.open(0)
    good = np.arange(4000) % 4 != 3
    assert skipping.count == 1000 and len(block) == 3000
    assert block.columns["x"].tobytes() == source.shape_bound.block(rows, None, OnError("skip")).columns["x"].tobytes()
    assert block.columns["y"].tolist() == (np.arange(4000) % 4)[good].tolist()
    assert block.where(3).endswith("row 4")


def test_a_footer_that_counts_wrong_is_damage(tmp_path) -> None:
    pq.write_table(table(4000), tmp_path / "t.parquet")
    source = ParquetSource([str(tmp_path / "t.parquet")], TableShape(label="y", features=["f0", "f1"]))
    source.survey.rows[0] += 1
    with pytest.raises(BadData, match="4000 rows where the footer says 4001"):
        next(source.open(0))

"""Sizes in Parquet footers: as PyArrow tells them, and an error where a footer is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import BadData
from penstock.sources.parquet.footer import group_sizes, parse_sizes


def table() -> pa.Table:
    return pa.table(
        {
            "a": np.arange(400.0),
            "t": [None if i % 7 == 0 else f"w{i}" for i in range(400)],
            "l": [[i] * (i % 3) for i in range(400)],
            "s": [{"x": i, "y": str(i)} for i in range(400)],
        }
    )


@pytest.mark.parametrize("options", [{}, {"compression": "none", "write_statistics": False}, {"version": "1.0"}])
def test_sizes_are_those_that_pyarrow_tells(tmp_path: Path, options: dict) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(), path, row_group_size=90, **options)
    footer = pq.read_metadata(path)
    found = group_sizes(path)
    assert [group.rows for group in found] == [90, 90, 90, 90, 40]
    for g, group in enumerate(found):
        assert len(group.columns) == footer.num_columns
        for i, column in enumerate(group.columns):
            theirs = footer.row_group(g).column(i)
            assert column.path == theirs.path_in_schema
            assert (column.stored, column.decoded) == (theirs.total_compressed_size, theirs.total_uncompressed_size)
            statistics = theirs.statistics
            assert column.nulls == (statistics.null_count if statistics and statistics.has_null_count else None)


def test_damaged_footers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    chance, refused = random.Random(0), 0
    for _ in range(10_000):
        broken = bytearray(footer)
        for _ in range(chance.choice((1, 2, 8))):
            broken[chance.randrange(length)] = chance.randrange(256)
        try:
            parse_sizes(bytes(broken[: chance.choice((length, chance.randrange(length)))]), "x.parquet")
        except BadData as error:
            assert "x.parquet" in str(error)
            refused += 1
    assert refused > 1000
    for cut in (data[:-1], data[:3], data[:-8] + b"\xff\xff\xff\x7fPAR1"):
        path.write_bytes(cut)
        with pytest.raises(BadData, match=r"a\.parquet: its Parquet footer is missing"):
            group_sizes(str(path))

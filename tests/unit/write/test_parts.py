"""A dataset written in parts, one after the other here: what tasks on a cluster do side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.core.errors import InvalidInput
from penstock.write.parts import begin_parts, joined, write_part

OPTIONS = {"shard_size": "4KB"}


@pytest.mark.parametrize(("rows", "count"), [(1000, 3), (2, 5)])
def test_parts_together_hold_each_row_once(tmp_path: Path, rows: int, count: int) -> None:
    table = tmp_path / "t.csv"
    table.write_text("n\n" + "\n".join(map(str, range(rows))) + "\n")
    out, ds = str(tmp_path / "out"), ps.read_csv(table)
    report = joined(write_part(2, ds, out, part, OPTIONS) for part in begin_parts(out, count, overwrite=False))
    assert report.rows == rows
    assert sorted(int(row["n"]) for row in ps.read_parquet(out)) == list(range(rows))
    again = joined(write_part(2, ds, out, part, OPTIONS) for part in begin_parts(out, count, overwrite=False))
    assert again == report  # it goes on where it was, which is the end


def test_a_folder_that_is_divided_otherwise_is_refused(tmp_path: Path) -> None:
    begin_parts(str(tmp_path), 3, overwrite=False)
    with pytest.raises(InvalidInput, match="holds 3 parts, not 4. Go on with --parts 3"):
        begin_parts(str(tmp_path), 4, overwrite=False)
    ps.from_tensor_slices([1, 2]).write(tmp_path / "whole")
    with pytest.raises(InvalidInput, match="holds shards already"):
        begin_parts(str(tmp_path / "whole"), 3, overwrite=False)

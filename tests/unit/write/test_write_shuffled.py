"""Shards in exactly shuffled order: all rows once, random, the same after a kill, and by the command."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app
from penstock.core.errors import InvalidInput

ROWS = 3_000


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "sorted.csv"
    path.write_text("row,kind\n" + "".join(f"{i},{'abc'[i * 3 // ROWS]}\n" for i in range(ROWS)))
    return path


def rows_in(folder) -> list[int]:
    return [v for file in sorted(folder.glob("*.parquet")) for v in pq.read_table(file)["row"].to_pylist()]


def test_rows_are_all_there_in_random_order(table, tmp_path):
    ds = ps.read_csv(table)
    report = ds.batch(64).write(tmp_path / "out", shuffle=3, shard_size="8KB")
    rows = rows_in(tmp_path / "out")
    assert report.rows == ROWS and sorted(rows) == list(range(ROWS))
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 2
    assert abs(np.corrcoef(rows, range(ROWS))[0, 1]) < 0.08
    ds.write(tmp_path / "again", shuffle=3)
    ds.write(tmp_path / "other", shuffle=4)
    assert rows_in(tmp_path / "again") == rows != rows_in(tmp_path / "other")


def test_a_shuffled_write_that_was_killed_goes_on_to_the_same_files(table, tmp_path):
    ds = ps.read_csv(table)
    ds.write(tmp_path / "whole", shuffle=3, shard_size="8KB")

    def kill(rows, nbytes):
        if rows > 1_500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ds.write(tmp_path / "out", shuffle=3, shard_size="8KB", progress=kill)
    assert len(rows_in(tmp_path / "out")) < ROWS
    ds.write(tmp_path / "out", shuffle=3, shard_size="8KB")
    assert rows_in(tmp_path / "out") == rows_in(tmp_path / "whole")


def test_what_cannot_be_kept_is_refused(table, tmp_path):
    both = ps.read_csv(table).concatenate(ps.read_csv(table))
    with pytest.raises(InvalidInput, match="exact=True cannot keep"):
        both.write(tmp_path / "out", shuffle=1)


def test_the_command_shuffles(table, tmp_path):
    done = CliRunner().invoke(app, ["pack", str(table), str(tmp_path / "out"), "--shuffle", "--seed", "3"])
    assert done.exit_code == 0, done.output
    rows = rows_in(tmp_path / "out")
    assert sorted(rows) == list(range(ROWS)) and rows != sorted(rows)

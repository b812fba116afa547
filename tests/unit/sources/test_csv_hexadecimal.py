"""Hexadecimal cells are text, as in pandas and DuckDB: PyArrow makes integers of them, negative ones from 2^63 on."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.core.errors import BadData

HASHES = ["0x3e10aca8", "0xbfdbc39743b7872e", "0XFFFFFFFFFFFFFFFF"]


def test_hexadecimal_cells_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,hash\n" + "".join(f"{i}, {h}\n" for i, h in enumerate(HASHES)))
    batch = next(iter(ps.read_csv(path).batch(9)))
    assert [h.strip() for h in batch["hash"].tolist()] == HASHES
    assert batch["id"].tolist() == [0, 1, 2]


def test_one_behind_the_samples_is_refused_by_name(tmp_path: Path) -> None:
    rows = [f"{i},{'x' * 40}" for i in range(60_000)]
    rows[12_000] = "0xbfdbc39743b7872e,x"
    path = tmp_path / "a.csv"
    path.write_text("id,t\n" + "\n".join(rows))
    with pytest.raises(BadData, match=r"line 12002\): column 'id' is int64 but holds '0xbfd.*'string'"):
        list(ps.read_csv(path).batch(1000))
    found = [i for batch in ps.read_csv(path, dtypes={"id": "string"}).batch(1000) for i in batch["id"].tolist()]
    assert found[12_000] == "0xbfdbc39743b7872e"

"""Quoted values that no sample shows: read as the csv module reads them, or refused by name."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.errors import BadData
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.plan import CsvOptions
from penstock.sources.csv.source import CsvSource
from penstock.sources.csv.split import Quoting
from penstock.sources.csv.unseen_quotes import first_unseen
from penstock.sources.tables.blocks import TableShape

LONG = "".join(f"{i},inside\n" for i in range(60_000))
"""A value of 700 KB whose lines look like rows."""


def with_long_value(folder: Path, column: str = "s") -> tuple[Path, int]:
    """A file of which no sample shows a quote, and where the quote of its long value stands."""
    plain = "".join(f"{i},text\n" for i in range(300_000))
    at = plain.index("\n", len(plain) // 4) + 1
    path = folder / "t.csv"
    path.write_text(f'n,{column}\n{plain[:at]}7,"{LONG}"\n{plain[at:]}')
    return path, len(f"n,{column}\n") + at + 2


@pytest.mark.parametrize("seed", range(4))
def test_a_shuffle_refuses_what_pieces_would_take_for_rows(tmp_path, seed):
    path, at = with_long_value(tmp_path)
    with pytest.raises(BadData, match=rf"t\.csv, byte {at}: a quoted value with newlines.*newlines_in_values=True"):
        for _ in ps.read_csv(path).shuffle(seed=seed).batch(512):
            pass


@pytest.mark.parametrize("way", ["in order", "pieces", "exact", "skip"])
def test_counting_quotes_gives_all_rows(tmp_path, monkeypatch, way):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path, _ = with_long_value(tmp_path)
    ds = ps.read_csv(path, newlines_in_values=True, on_error="skip" if way == "skip" else "raise")
    if way != "in order":
        ds = ds.shuffle(seed=1, exact=way == "exact")
    texts = [text for batch in ds.batch(512) for text in batch["s"]]
    assert len(texts) == 300_001
    assert texts.count(LONG) == 1 and texts.count("text") == 300_000


def test_in_order_a_value_shorter_than_a_range_is_read(tmp_path):
    path, _ = with_long_value(tmp_path)
    texts = [text for batch in ps.read_csv(path).batch(512) for text in batch["s"]]
    assert len(texts) == 300_001 and texts.count(LONG) == 1


CELL = st.lists(st.sampled_from(["a", '"', ",", "\n", "\n", "b\nc", "1,2\n3,4\n5,6\n7,8"]), max_size=5).map("".join)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1, max_size=12),
    range_nbytes=st.integers(4, 40),
    order=st.randoms(use_true_random=False),
    mark=st.booleans(),
)
@example([["a", "1,2\n3,4\n5,6\n7,8" * 3]], 8, None, False)
def test_rows_are_right_or_refused_in_any_order_of_parts(tmp_path, rows, range_nbytes, order, mark):
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    text = out.getvalue()
    path = tmp_path / "t.csv"
    path.write_bytes(("\ufeff" if mark else "").encode() + text.encode())
    expected = sorted(row for row in csv.reader(io.StringIO(text, newline="")) if row)
    options = CsvOptions(
        dialect=Dialect(header=False, null_values=("\0",)), names=("a", "b"), range_nbytes=range_nbytes,
        dtypes={"a": "string", "b": "string"},
    )  # fmt: skip
    for parts in ("units", "pieces"):
        source = CsvSource([str(path)], TableShape(), options)
        source.__dict__["plan"] = replace(source.plan, quotes=False)  # as if no sample had shown them
        numbers = list(range(source.num_units() if parts == "units" else source.num_pieces()))
        if order is not None:
            order.shuffle(numbers)
        try:
            if parts == "units":
                blocks = [block for unit in numbers for block in source.open(unit)]
            else:
                blocks = [source.read_pieces(np.array([piece])) for piece in numbers]
        except BadData:
            continue
        assert sorted(list(block.row(i).values()) for block in blocks for i in range(len(block))) == expected


def test_only_values_that_hide_whole_parts_are_found(tmp_path):
    quoting = Quoting(ord(","), ord('"'))
    path = tmp_path / "t.csv"
    path.write_text('1,"' + "x\n" * 100 + '"\n2,y\n')
    assert first_unseen(str(path), path.stat().st_size, 50, quoting) == 2
    assert first_unseen(str(path), path.stat().st_size, 250, quoting) is None
    path.write_text('1,"' + "x" * 100 + '"\n2,y\n')  # no newline inside
    assert first_unseen(str(path), path.stat().st_size, 30, quoting) is None

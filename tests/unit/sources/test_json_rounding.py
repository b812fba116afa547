"""Whole numbers beyond 2^53 among floats: exact, or refused with the line's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.core.errors import BadData
from penstock.sources.tables.column import loses_digits

ODD = 2**53 + 1


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "rows",
    [
        [{"n": 1.5}, {"n": ODD}],
        [{"n": -ODD}, {"n": 1.5}],
        [{"n": 1.5, "word": "x"}, {"n": ODD, "word": "y"}],
        [{"n": [1.5, 2]}, {"n": [1, ODD]}],
        [{"n": {"m": 1.5}}, {"n": {"m": ODD}}],
        [{"n": [{"m": 1.5}]}, {"n": [{"m": 2}, {"m": ODD}]}],
        [{"n": 1.5}, {"n": 10**18 + 1}],
    ],
    ids=["numbers", "negative", "text beside", "list", "object", "objects in a list", "a thousand times as large"],
)
def test_a_whole_number_that_a_float_would_round_is_a_damaged_row(tmp_path, rows):
    path = lines(tmp_path / "a.jsonl", *rows)
    with pytest.raises(BadData, match=r"byte \d+: field 'n.*would round -?\d{16}") as caught:
        list(ps.read_json(path))
    assert len(str(caught.value)) < 500
    kept = list(ps.read_json(path, on_error="skip"))
    assert len(kept) == 1  # the other row is as it was


def test_digits_may_be_given_up_by_name(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"n": 1.5}, {"n": ODD})
    assert [row["n"] for row in ps.read_json(path, dtypes={"n": "float64"})] == [1.5, 2.0**53]


def test_large_whole_numbers_that_floats_hold_are_read(tmp_path):
    values = [1.5, 2**53, 2**60, 10**17, 123456789012345680]
    path = lines(tmp_path / "a.jsonl", *({"n": value} for value in values))
    assert [row["n"] for row in ps.read_json(path)] == values


@pytest.mark.parametrize("digits", [400, 5000])
def test_whole_numbers_beyond_all_floats_are_damaged_rows(tmp_path, digits):
    path = tmp_path / "a.jsonl"
    rows = ['{"n": 1.5}\n'] * 120_000
    rows[40_000] = '{"n": %s}\n' % ("9" * digits)
    path.write_text("".join(rows))
    with pytest.raises(BadData, match="field 'n.*would round 9{40}") as caught:
        list(ps.read_json(str(path)))
    assert len(str(caught.value)) < 500
    assert len(list(ps.read_json(str(path), on_error="skip"))) == 119_999


def test_damage_far_from_the_samples_keeps_its_place_and_its_neighbours(tmp_path):
    rows = [{"n": i + 0.5, "word": "x" * 50} for i in range(20_000)]
    rows[7_003]["n"] = ODD
    path = lines(tmp_path / "a.jsonl", *rows)
    kept = [row["n"] for row in ps.read_json(path, on_error="skip")]
    assert kept == [row["n"] for row in rows if row["n"] != ODD]


def test_what_a_float_loses():
    assert loses_digits(ODD) and loses_digits(-ODD) and loses_digits(10**18 + 1)
    assert not loses_digits(2**53) and not loses_digits(2**60) and not loses_digits(10**23)

"""Whole numbers beyond 2^53 among floats in CSV files: exact, or refused with the line's place."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.core import events
from penstock.core.errors import BadData
from penstock.sources.csv.rounding import may_hold_long_integer

ODD = 2**53 + 1
ID = 702608000000000001


def table(path: Path, *cells: object, header: str = "n", beside: str = "") -> str:
    path.write_text(header + "\n" + "".join(f"{cell}{beside}\n" for cell in cells))
    return str(path)


@pytest.mark.parametrize(
    ("cells", "header", "beside"),
    [
        ((1.5, ODD), "n", ""),
        ((-ODD, 1.5), "n", ""),
        (("7.02608E+17", ID), "n", ""),
        (("7.02608E+17", f"+{ID}"), "n", ""),
        (("inf", 12345678901234567891), "n", ""),
        ((1.5, "9" * 400), "n", ""),
        ((1.5, "9" * 5000), "n", ""),
        ((1.5, ID), "n,m", ",3"),
        ((1.5, ID), "n,word", ",x"),
        (('"1.5"', f'"{ID}"'), "n", ""),
    ],
    ids=["half", "negative", "exponent", "plus", "infinite", "huge", "digits", "integers", "text", "quoted"],
)
def test_a_whole_number_that_a_float_would_round_is_a_damaged_row(tmp_path, cells, header, beside):
    path = table(tmp_path / "a.csv", *cells, header=header, beside=beside)
    with pytest.raises(BadData, match=r"byte \d+ \(line \d\): column 'n' is .*would round [+-]?\d{16}") as caught:
        list(ps.read_csv(path))
    assert len(str(caught.value)) < 500
    assert len(list(ps.read_csv(path, on_error="skip"))) == 1  # the other row is as it was


def test_digits_may_be_given_up_or_kept_by_name(tmp_path):
    path = table(tmp_path / "a.csv", 1.5, ODD)
    assert [row["n"] for row in ps.read_csv(path, dtypes={"n": "float64"})] == [1.5, 2.0**53]
    assert [row["n"] for row in ps.read_csv(path, dtypes={"n": "string"})] == ["1.5", str(ODD)]
    assert next(iter(ps.read_csv(path, features=["n"]).batch(2))).tolist() == [[1.5], [2.0**53]]


def test_numbers_that_floats_hold_are_read_as_they_are(tmp_path):
    path = table(tmp_path / "a.csv", 1.5, 2**53, 2**60, 10**17, 123456789012345680, f"{ODD}.0", "9.007199254740993e15")
    expected = [1.5, 2.0**53, 2.0**60, 1e17, 123456789012345680.0, 2.0**53, 2.0**53]
    assert [row["n"] for row in ps.read_csv(path)] == expected


def test_a_word_for_a_missing_value_is_missing(tmp_path):
    path = table(tmp_path / "a.csv", 1.5, ODD, 1e17)
    found = next(iter(ps.read_csv(path, null_values=[str(ODD)]).batch(3)))["n"]
    np.testing.assert_array_equal(found, [1.5, np.nan, 1e17])


def test_damage_far_from_the_samples_keeps_its_place_and_its_neighbours(tmp_path):
    rows: list[str] = [f"{i + 0.5},{'x' * 50}" for i in range(40_000)]
    rows[13_003] = f"{ID},odd"
    rows[13_005] = "word,does not fit"
    rows[13_007] = "too,many,cells"
    rows[13_009] = f"{2**60},exact"
    path = table(tmp_path / "a.csv", *rows, header="n,word")
    kept = [row["word"] for row in ps.read_csv(path, on_error="skip")]
    assert kept == [row.split(",")[1] for i, row in enumerate(rows) if i not in (13_003, 13_005, 13_007)]
    place = len("n,word\n") + sum(len(row) + 1 for row in rows[:13_003])
    with pytest.raises(BadData, match=rf"byte {place} \(line 13005\).*would round {ID}"):
        list(ps.read_csv(path))


def test_a_compressed_file_and_a_shuffled_one_obey_the_same_rule(tmp_path):
    path = table(tmp_path / "a.csv", 1.5, ID, 2.5)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    packed = ps.read_csv(str(tmp_path / "b.csv.gz"), on_error="skip")
    assert [row["n"] for row in packed] == [1.5, 2.5]
    assert sorted(row["n"] for row in ps.read_csv(path, on_error="skip").shuffle(seed=1)) == [1.5, 2.5]


def test_large_floats_stay_with_the_kernel(tmp_path):
    path = table(tmp_path / "a.csv", 1.5, 7.02608e17, 1.2345678901234567e19, "inf", 0.12345678901234567)
    before = events.fallbacks()
    assert len(list(ps.read_csv(path))) == 5
    assert events.fallbacks() == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1234567890123456", True),
        ("a,1234567890123456\n", True),
        ("1.5,-12345678901234567890,3\n", True),
        ("1234567890123456.0,12345678901234567\n", True),
        ("123456789012345", False),
        ("0.1234567890123456", False),
        ("1234567890123456.5\n", False),
        ("1234567890123456e3", False),
        ("12345678,90123456\n", False),
        ("", False),
    ],
)
def test_long_whole_numbers_in_a_text(text, expected):
    assert may_hold_long_integer(text.encode()) is expected

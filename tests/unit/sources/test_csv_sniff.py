"""What the first lines of a CSV file say: a header or none, which quote; short rows; whole numbers of any length."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import penstock as ps
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.sniff import sniff_delimiter, sniff_header, sniff_quote

HEADERS = [
    "a,b\n1,2\n3,4\n",
    "0,1,2\n4,8,3\n9,9,9\n",
    ",0,1\n0,4,8\n1,9,9\n",
    "country,2019,2020\nfr,8,3\nde,3,4\n",
    "name,town\nann,rome\nbob,oslo\n",
    "day,n\n2020-01-01,x\n2020-01-02,y\n",
    "a,b\n1,x\na,b\n2,y\n",
    "only\n",
    "#chrom,start\nchr1,100\nchr2,5\n",
]
ROWS = [
    "5.1,3.5,setosa\n4.9,3.0,setosa\n",
    "5,0,0,1\n4,9,3,0\n",
    "-1,2\n3,4\n",
    "39,State-gov,13\n50,Private,12\n22,State-gov,9\n",
    "2020-01-01,3\n2020-01-02,4\n",
    "1e5,NA\n2,3\n",
]
NOBODY_KNOWS = ["5,9,1\n4,8,3\n", "img1.png,cat\nimg2.png,dog\nimg3.png,cat\n", "7\n3\n"]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def batches(path: Path, **options: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for batch in ps.read_csv(path, **options).batch(100):
        for name, values in batch.items():
            found.setdefault(name, []).extend(values.tolist())
    return found


@pytest.mark.parametrize(("texts", "wanted"), [(HEADERS, True), (ROWS, False), (NOBODY_KNOWS, None)])
def test_a_header_is_told_from_a_row(texts: list[str], wanted: bool | None) -> None:
    assert [sniff_header(text.encode(), Dialect()) for text in texts] == [wanted] * len(texts)


def test_where_a_header_is_found_the_standard_library_does_not_lose_it_either() -> None:
    """Both look at the same files; what Python's sniffer calls a header over numbers is one here too."""
    numbers = "height,weight\n" + "".join(f"{i}.5,{i}\n" for i in range(20))
    assert csv.Sniffer().has_header(numbers) and sniff_header(numbers.encode(), Dialect())


def test_rows_without_a_header_are_all_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ROWS[0])
    wanted = pd.read_csv(path, header=None)
    assert list(batches(path).values()) == [wanted[i].tolist() for i in wanted]
    assert list(batches(path, column_names=["x", "y", "kind"])) == ["x", "y", "kind"]
    assert len(batches(path, header=True)["5.1"]) == 1
    with pytest.raises(NotFound, match="header=True"):
        batches(path, label="kind")


def test_who_cannot_know_asks(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", NOBODY_KNOWS[1])
    with pytest.raises(InvalidInput, match=r"'img1.png,cat'. Give header=True or header=False"):
        ps.read_csv(path)
    assert batches(path, header=False)["c1"] == ["cat", "dog", "cat"]
    assert batches(path, header=True)["cat"] == ["dog", "cat"]


def test_a_first_line_that_may_be_a_comment_is_asked_about(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "# two towns; of many\nname;town\nann;rome\nbob;oslo\n")
    with pytest.raises(InvalidInput, match="Give comment='#' if it is neither, or header=True"):
        ps.read_csv(path)
    assert batches(path, comment="#") == {"name": ["ann", "bob"], "town": ["rome", "oslo"]}


def test_single_quotes_are_found_where_they_enclose_values(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "'a','b'\n'x, y',1\n'it''s',2\n")
    wanted = pd.read_csv(path, quotechar="'")
    assert batches(path) == {name: wanted[name].tolist() for name in wanted}
    assert sniff_quote(b"a,b\n'tis,1\n'twas,2\n") == '"'
    assert sniff_quote(b"a,b\n'x' and 'y',1\n'z',2\n") == '"'
    assert sniff_quote(b"'a',\"b\"\n'c',\"d\"\n") == '"'


def test_a_delimiter_is_not_counted_within_quotes_or_comments() -> None:
    header = b'"a;b;\n;c",n\n"x;\n;;",2\n"y",3\n'
    assert sniff_delimiter(header, '"') == "," and sniff_header(header, Dialect())
    assert sniff_delimiter(b"# a, b, and c\nn;m\n1;2\n", '"') == ";"
    assert sniff_delimiter(b"#n|m\n#x|y\n", '"') == "|"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_short_rows_are_refused_or_padded(tmp_path: Path, ends: str) -> None:
    lines = ["a,b,c", "1,2", "", "3", '"x\ny",5', "7,8,9"]
    path = tmp_path / "a.csv"
    path.write_bytes(ends.join(lines).encode())
    with pytest.raises(BadData, match=r"a.csv, byte \d+ \(line 2\): 2 values.*short_rows='pad'"):
        batches(path, dtypes={"a": "string"})
    found = batches(path, short_rows="pad", dtypes={"a": "string"})
    assert found["a"] == ["1", "3", "x\ny", "7"]
    np.testing.assert_array_equal(found["b"], [2, np.nan, 5, 8])
    np.testing.assert_array_equal(found["c"], [np.nan, np.nan, np.nan, 9])
    path.write_text("a,b\n1,2,3\n4\n")
    with pytest.raises(BadData, match="3 values where there are 2"):
        batches(path, short_rows="pad")
    with pytest.raises(InvalidInput, match="'error' or 'pad'"):
        ps.read_csv(path, short_rows="fill")


def test_padded_rows_are_those_of_pandas_in_a_large_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [",".join(map(str, rng.integers(0, 99, rng.integers(1, 5)))) for _ in range(20_000)]
    path = written(tmp_path / "a.csv", "a,b,c,d\n" + "\n".join(rows) + "\n")
    wanted = pd.read_csv(path)
    found = batches(path, short_rows="pad")
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_whole_numbers_beyond_int64_are_exact_or_refused(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 2**53 + 1, 5]
    path = written(tmp_path / "a.csv", "id\n" + "\n".join(map(str, ids)) + "\n")
    assert batches(path) == {"id": ids}
    assert next(iter(ps.read_csv(path).batch(4)))["id"].dtype == np.uint64
    for text in (f"id\n{2**64}\n1\n", f"id\n{2**64 - 1}\n-1\n", f"id\n{-(2**63) - 1}\n1\n"):
        with pytest.raises(BadData, match=r"column 'id' holds whole numbers.*dtypes=\{'id': 'string'\}"):
            batches(written(tmp_path / "b.csv", text))
    assert batches(tmp_path / "b.csv", dtypes={"id": "string"})["id"] == [str(-(2**63) - 1), "1"]
    with pytest.raises(BadData, match=r"'id' has missing values.*fill="):
        batches(written(tmp_path / "c.csv", f"id,x\n{2**64 - 1},1\n,2\n"))
    assert batches(tmp_path / "c.csv", fill={"id": 0})["id"] == [2**64 - 1, 0]


def test_a_long_number_that_no_sample_showed_is_refused_by_name(tmp_path: Path) -> None:
    rows = [f"{i},{'x' * 40}" for i in range(60_000)]
    rows[12_000] = f"{2**63},x"
    path = written(tmp_path / "a.csv", "id,t\n" + "\n".join(rows))
    with pytest.raises(BadData, match=r"line 12002\): column 'id' is int64 but holds '9223372036854775808'.*'uint64'"):
        batches(path)
    assert batches(path, dtypes={"id": "uint64"})["id"][12_000] == 2**63


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("größe,n\n1,2\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"first line is not UTF-8.*encoding="):
        batches(path)
    assert list(batches(path, encoding="latin-1")) == ["größe", "n"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_quote_that_is_never_closed_does_not_take_the_rest_of_the_file(tmp_path: Path, suffix: str) -> None:
    text = "a,b\n" + "".join(f"{i},x{i}\n" for i in range(5000)) + '5000,"x5000\n5001,x\n5002,y\n'
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    for ds in (ps.read_csv(path), ps.read_csv(path).shuffle(seed=1)):
        with pytest.raises(BadData, match=r"a\.csv.*byte \d+: a quote is never closed.*quote=None"):
            list(ds.batch(100))
    kept = ps.read_csv(path, on_error="skip").shuffle(seed=1).batch(100)
    assert sorted(int(i) for batch in kept for i in batch["a"]) == list(range(5000))
    assert len(batches(path, quote=None)["a"]) == 5003

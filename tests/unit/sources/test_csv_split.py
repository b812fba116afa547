from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.core.block import Block
from penstock.core.errors import BadData
from penstock.core.source import OnError
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.plan import CsvOptions
from penstock.sources.csv.source import CsvSource
from penstock.sources.csv.split import INSIDE, OUTSIDE, Quoting
from penstock.sources.tables.blocks import TableShape

CELL = st.lists(st.sampled_from(["a", "b", '"', ",", ";", "\n", "\r\n", " ", "é", "1"]), max_size=5).map("".join)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, Dialect, int]:
    """A file as the csv module writes it, with a mark, line ends and a last line as they come."""
    delimiter, end = draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n"]))
    width = draw(st.integers(2, 4))
    rows = draw(st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=25))
    out = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    header = draw(st.booleans())
    if header:
        writer.writerow([f"h{i}" for i in range(width)])
    for row in rows:
        writer.writerow(row)
        if draw(st.integers(0, 9)) == 0:
            out.write(end)
    text = out.getvalue()
    if draw(st.booleans()):
        text = text.removesuffix(end)
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return (mark + text).encode(), Dialect(delimiter=delimiter, header=header, null_values=("\0",)), width


def read(path: Path, dialect: Dialect, width: int, range_nbytes: int) -> list[list[str]]:
    names = [f"h{i}" for i in range(width)]
    options = CsvOptions(
        dialect=dialect,
        names=None if dialect.header else tuple(names),
        dtypes=dict.fromkeys(names, "string"),
        range_nbytes=range_nbytes,
    )
    source = CsvSource([str(path)], TableShape(), options)
    rows = rows_in(block for unit in range(source.num_units()) for block in source.open(unit))
    groups = [np.arange(at, min(at + 5, source.num_pieces())) for at in range(0, source.num_pieces(), 5)]
    if groups:  # scattered pieces hold the same rows
        assert rows_in(map(source.read_pieces, groups)) == rows
    return rows


def rows_in(blocks: Iterable[Block]) -> list[list[str]]:
    return [list(block.row(i).values()) for block in blocks for i in range(len(block))]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=files(), range_nbytes=st.integers(1, 80), packed=st.booleans())
def test_ranges_give_the_rows_of_the_csv_module(
    tmp_path: Path, data: tuple[bytes, Dialect, int], range_nbytes: int, packed: bool
) -> None:
    text, dialect, width = data
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    plain = io.StringIO(text.decode("utf-8-sig"), newline="")
    expected = [row for row in csv.reader(plain, delimiter=dialect.delimiter) if row][1 if dialect.header else 0 :]
    assert read(path, dialect, width, range_nbytes) == expected


@settings(max_examples=2000)
@example('aaa,""a""', 6)
@given(st.text(st.sampled_from('a",\n\r'), max_size=40), st.integers(0, 40))
def test_the_state_of_a_text_is_that_of_its_pieces(text: str, cut: int) -> None:
    quoting, raw = Quoting(ord(","), ord('"')), np.frombuffer(text.encode(), np.uint8)
    left, right = raw[:cut], raw[cut:]
    whole = quoting.toggles(raw, OUTSIDE, 10)
    first = quoting.toggles(left, OUTSIDE, 10)
    second = quoting.toggles(right, first[1], int(left[-1]) if len(left) else 10)
    if len(right):
        assert second[1] == whole[1]
    assert [*first[0], *(second[0] + len(left))] == whole[0].tolist()


def test_a_quote_in_an_unquoted_value_is_text() -> None:
    quoting = Quoting(ord(","), ord('"'))
    text = np.frombuffer(b'5" pipe,x\n6" pipe,"a\nb"\n', np.uint8)
    assert quoting.newlines(text, OUTSIDE, 10).tolist() == [9, 23]
    assert quoting.newlines(np.frombuffer(b'a\nb"\n', np.uint8), INSIDE, 0).tolist() == [4]


def test_quotes_that_no_sample_showed_are_found(tmp_path: Path) -> None:
    """The samples (start, middle, end) have no quotes; one stretch in between has."""
    plain = b"".join(b"%d,text\n" % i for i in range(120_000))
    at = plain.index(b"\n", len(plain) // 4) + 1
    path = tmp_path / "t.csv"
    path.write_bytes(b"n,s\n" + plain[:at] + b'7,"a\n1,b\n2,c"\n' + plain[at:])
    source = CsvSource([str(path)], TableShape(), CsvOptions(range_nbytes=50_000))
    assert not source.plan.quotes
    texts = [t for u in range(source.num_units()) for b in source.open(u) for t in b.columns["s"].to_pylist()]
    assert len(texts) == 120_001 and texts.count("a\n1,b\n2,c") == 1


def test_a_line_without_end_is_refused_by_name_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,2\n" + b"3," + b"9" * 500_000 + b"\n5,6\n")
    options = CsvOptions(range_nbytes=1000, max_line=100_000, dtypes={"a": "int64", "b": "int64"})
    with pytest.raises(BadData, match=r"t.csv, byte 8: a line is longer than 100 KB.*max_line="):
        list(CsvSource([str(path)], TableShape(), options).open(0))
    policy = OnError("skip")
    source = CsvSource([str(path)], TableShape(), options, policy)
    rows = [n for u in range(source.num_units()) for b in source.open(u) for n in b.columns["a"].tolist()]
    assert rows == [1, 5] and policy.count == 1
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    streamed = CsvSource([str(packed)], TableShape(), options, OnError("skip"))
    assert [n for b in streamed.open(0) for n in b.columns["a"].tolist()] == [1, 5] and streamed.on_error.count == 1

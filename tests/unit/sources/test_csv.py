from __future__ import annotations

import bz2
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged, TooManyErrors
from penstock.core.source import OnError, UnitSource
from penstock.read.csv import read_csv
from penstock.sources.csv.arrow import Dialect
from penstock.sources.csv.plan import CsvOptions
from penstock.sources.csv.source import CsvSource
from penstock.sources.tables.blocks import TableShape


def whole(source: CsvSource) -> Block:
    return Block.concat([block for unit in range(source.num_units()) for block in source.open(unit)])


def source_of(path: Path, text: str, shape: TableShape | None = None, **options: Any) -> CsvSource:
    path.write_text(text)
    policy = options.pop("on_error", None)
    return CsvSource([str(path)], shape or TableShape(), CsvOptions(**options), policy)


def table_text(rows: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    forms = ["{:.6f}", "{!r}", "{:.3e}", "{:.0f}"]
    lines = ["a,b,c,n"]
    for i in range(rows):
        cells = [forms[rng.integers(4)].format(float(v)) for v in rng.standard_normal(3) * 10.0 ** rng.integers(-5, 20)]
        if rng.random() < 0.1:
            cells[rng.integers(3)] = ["", "NA", "inf", "NaN"][rng.integers(4)]
        lines.append(",".join([*cells, str(i)]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "shape",
    [
        TableShape(),
        TableShape(features=["c", "a"], label="n"),
        TableShape(label="n", dtype="float64"),
        TableShape(label="a", features=["n", "b", "c"]),
    ],
    ids=["columns", "float32", "float64", "reordered"],
)
def test_the_kernel_and_pyarrow_give_the_same_blocks(tmp_path: Path, shape: TableShape) -> None:
    text = table_text(2000)
    fast = source_of(tmp_path / "t.csv", text, shape, range_nbytes=20_000)
    slow = source_of(tmp_path / "t.csv", text, shape, range_nbytes=20_000, kernel=False)
    layout = fast.plan.layout
    assert layout is not None and slow.plan.layout is None
    assert fast.schema() == slow.schema()
    assert fast.num_units() > 3
    for unit in range(fast.num_units()):
        (left,), (right,) = fast.open(unit), slow.open(unit)
        assert left.schema == right.schema == fast.schema()
        for name in left.columns:
            np.testing.assert_array_equal(left.columns[name], right.columns[name])
            known = ~np.isnan(left.columns[name])
            assert left.columns[name][known].tobytes() == right.columns[name][known].tobytes()


def test_the_kernel_really_reads_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing every range back would make the test above compare PyArrow with itself."""
    source = source_of(tmp_path / "t.csv", table_text(2000), TableShape(label="n"), range_nbytes=20_000)
    layout = source.plan.layout
    assert layout is not None
    monkeypatch.setattr("penstock.sources.csv.source.Parser.parse", None)
    assert len(whole(source)) == 2000


def test_types_are_inferred_and_can_be_overridden(tmp_path: Path) -> None:
    first = '1,1.5,"x, y",true,2020-01-02,2020-01-02 03:04:05,1,'
    text = f"i,f,s,flag,day,at,hole,empty\n{first}\n2,3,NA,false,2021-01-01,2021-01-01T00:00:00.5,,\n"
    block = whole(source_of(tmp_path / "t.csv", text))
    assert block.columns["i"].dtype == np.int64
    assert block.columns["f"].tolist() == [1.5, 3.0]
    assert block.columns["s"].to_pylist() == ["x, y", None]
    assert block.columns["flag"].tolist() == [True, False]
    assert block.columns["day"].tolist() == np.array(["2020-01-02", "2021-01-01"], "datetime64[D]").tolist()
    assert block.columns["at"][1] == np.datetime64("2021-01-01T00:00:00.5")
    np.testing.assert_array_equal(block.columns["hole"], [1.0, np.nan])
    assert block.columns["empty"].to_pylist() == [None, None]
    other = whole(source_of(tmp_path / "t.csv", text, dtypes={"i": "float32", "f": "string", "day": pa.string()}))
    assert other.columns["i"].dtype == np.float32 and other.columns["f"].to_pylist() == ["1.5", "3"]
    with pytest.raises(InvalidInput, match="is not a type"):
        source_of(tmp_path / "t.csv", text, dtypes={"i": "flaot"}).schema()
    with pytest.raises(NotFound, match=r"'q'.*has: i, f"):
        source_of(tmp_path / "t.csv", text, dtypes={"q": "string"}).schema()


def test_samples_come_from_all_of_a_file(tmp_path: Path) -> None:
    rows = [f"{i},{i}" for i in range(150_000)]
    rows[85_000] = "1.5,x"
    source = source_of(tmp_path / "t.csv", "a,b\n" + "\n".join(rows))
    assert source.schema()["a"].dtype == np.float64 and source.schema()["b"].text


def test_a_value_that_does_not_fit_is_named_with_its_remedy(tmp_path: Path) -> None:
    rows = [f"{i},{i % 7}" for i in range(300_000)]
    rows[100_000] = "oops,3"
    rows[100_002] = "1,2,3"
    text = "a,b\n" + "\n".join(rows)
    source = source_of(tmp_path / "t.csv", text, range_nbytes=100_000)
    place = text.index("oops")
    with pytest.raises(
        BadData, match=rf"t.csv, byte {place} \(line 100002\): column 'a' is int64 but holds 'oops'.*dtypes="
    ):
        whole(source)
    policy = OnError("skip")
    kept = source_of(tmp_path / "t.csv", text, range_nbytes=100_000, on_error=policy)
    block = whole(kept)
    assert len(block) == 299_998 and policy.count == 2
    assert "3 values where there are 2 columns" in str(policy.last)
    row = int(np.flatnonzero(block.columns["a"] == 100_003)[0])
    assert block.where(row) == f"{tmp_path}/t.csv, byte {text.index('100003,')}"
    strict = source_of(tmp_path / "t.csv", text, range_nbytes=100_000, on_error=OnError("skip", 1))
    with pytest.raises(TooManyErrors):
        whole(strict)


def test_every_kind_of_bad_cell_is_found(tmp_path: Path) -> None:
    good = "1,1.5,true,2020-01-01,2020-01-01 10:00:00,text\n"
    bad = ["x,1,true,2020-01-01,,t", "1,1.5.2,true,2020-01-01,,t", "1,1,maybe,2020-01-01,,t", "1,1,true,someday,,t"]
    bad += ["1,1,true,2020-01-01,never,t"]
    types = {"i": "int64", "f": "float64", "b": "bool", "d": "date", "t": "datetime", "s": "string"}
    policy = OnError("skip")
    text = "i,f,b,d,t,s\n" + good + "\n".join(bad) + "\n" + good
    source = source_of(tmp_path / "t.csv", text, dtypes=types, on_error=policy)
    assert len(whole(source)) == 2 and policy.count == 5
    raw = tmp_path / "raw.csv"
    raw.write_bytes(b"s\nok\n\xff\xfe\nfine\n")
    skipping = CsvSource([str(raw)], TableShape(), CsvOptions(), OnError("skip"))
    assert whole(skipping).columns["s"].to_pylist() == ["ok", "fine"] and skipping.on_error.count == 1


def test_missing_integers_and_unknown_categories_late_in_a_file(tmp_path: Path) -> None:
    rows = [f"{i},{'uv'[i % 2]}" for i in range(300_000)]
    rows[100_000] = ",u"
    rows[200_000] = "1,w"
    text = "n,c\n" + "\n".join(rows)
    with pytest.raises(BadData, match=r"'n'.*missing value"):
        whole(source_of(tmp_path / "t.csv", text))
    policy = OnError("skip")
    block = whole(source_of(tmp_path / "t.csv", text, dtypes={"c": "category"}, on_error=policy))
    assert len(block) == 299_998 and policy.count == 2
    assert block.columns["c"].dtype == np.int32 and block.columns["c"][:3].tolist() == [0, 1, 0]
    filled = whole(source_of(tmp_path / "t.csv", text, TableShape(fill={"n": -1})))
    assert filled.columns["n"].dtype == np.int64 and filled.columns["n"][100_000] == -1


def test_categories_given_or_inferred(tmp_path: Path) -> None:
    text = "n,c\n1,red\n2,\n3,blue\n"
    given = source_of(tmp_path / "t.csv", text, TableShape(label="c"), categories={"c": ["red", "blue"]})
    assert whole(given).columns["y"].tolist() == [0, -1, 1]
    inferred = source_of(tmp_path / "t.csv", text, categories="infer")
    assert whole(inferred).columns["c"].tolist() == [1, -1, 0]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_compressed_files_stream_in_blocks_and_resume(tmp_path: Path, suffix: str) -> None:
    text = table_text(3000).encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": pa.Codec("zstd").compress}[suffix]
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(bytes(pack(text)) if suffix != ".zst" else pa.compress(text, "zstd", asbytes=True))
    plain = tmp_path / "t.csv"
    plain.write_bytes(text)
    options = CsvOptions(range_nbytes=20_000)
    source = CsvSource([str(path)], TableShape(), options)
    blocks = list(source.open(0))
    assert len(blocks) > 3 and source.num_units() == 1
    same = whole(CsvSource([str(plain)], TableShape(), options))
    np.testing.assert_array_equal(Block.concat(blocks).columns["a"], same.columns["a"])
    rest = list(source.open(0, 2))
    assert [len(b) for b in rest] == [len(b) for b in blocks[2:]]
    np.testing.assert_array_equal(rest[0].columns["n"], blocks[2].columns["n"])


def test_a_truncated_gzip_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(table_text(5000).encode())[:-5000])
    with pytest.raises(BadData, match=r"t.csv.gz.*damaged or cut short"):
        whole(CsvSource([str(path)], TableShape(), CsvOptions(range_nbytes=20_000)))


def test_files_must_agree(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a,c\n3,4\n")
    (tmp_path / "3.csv").write_text("b,a\n3,4\n")
    paths = [str(tmp_path / f"{i}.csv") for i in (1, 2, 3)]
    source = CsvSource(paths, TableShape(), CsvOptions())
    with pytest.raises(SchemaChanged, match=r"2.csv does not have the columns of .*1.csv: column 'c'"):
        list(source.open(1))
    with pytest.raises(SchemaChanged, match="another order"):
        list(source.open(2))
    good = CsvSource([paths[0], paths[0]], TableShape(), CsvOptions())
    assert whole(good).columns["a"].tolist() == [1, 1]


def test_a_source_is_a_cheap_description(tmp_path: Path) -> None:
    source = source_of(tmp_path / "t.csv", table_text(500), TableShape(label="n"), range_nbytes=5000)
    assert isinstance(source, UnitSource)
    assert source.num_rows() is None and source.unit_nbytes(0) > 5000
    before = source.fingerprint()
    copied = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(whole(copied).columns["x"], whole(source).columns["x"])
    assert copied.fingerprint() == before
    (tmp_path / "t.csv").write_text(table_text(501))
    assert source.fingerprint() != before
    with pytest.raises(InvalidInput, match="has no unit 999"):
        list(source.open(999))


@pytest.mark.parametrize("text", [b"a,b\r1,2\r", b"PAR1\x15\x04\r\x00\x01,2\n1,2\n"], ids=["old line ends", "binary"])
def test_a_first_line_that_is_no_csv_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(BadData, match=r"t.csv: its first line cannot be read: lines end in .* or it is no CSV file"):
        list(read_csv(str(tmp_path / "t.csv")))


def test_headers_empty_files_and_dialects(tmp_path: Path) -> None:
    bare = source_of(tmp_path / "t.csv", "1;2\n3;4\n", dialect=Dialect(delimiter=";", header=False))
    assert whole(bare).columns["c1"].tolist() == [2, 4]
    twice = source_of(tmp_path / "t.csv", "a,a\n1,2\n")
    assert twice.schema().names == ["a", "a.1"]
    assert len(whole(source_of(tmp_path / "t.csv", "a,b\n"))) == 0
    with pytest.raises(BadData, match="the file is empty"):
        source_of(tmp_path / "t.csv", "").schema()
    with pytest.raises(NotFound, match=r"t.csv has no column 'z'. There are: a, b"):
        source_of(tmp_path / "t.csv", "a,b\n1,2\n", TableShape(label="z")).schema()
    with pytest.raises(InvalidInput, match="one plain character"):
        Dialect(delimiter="||")


def test_read_csv_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\ty\n" + "".join(f"{i}\t{i / 2}\t{i % 2}\n" for i in range(10)))
    batches = list(read_csv(tmp_path / "t.tsv", label="y").batch(4))
    assert [x.shape for x, _ in batches] == [(4, 2), (4, 2), (2, 2)]
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), np.arange(10) % 2)
    schema = {"p": "float32", "q": "float64", "r": "int64"}
    (tmp_path / "n.csv").write_text("1,2,3\n")
    (sample,) = list(read_csv(tmp_path / "n.csv", header=False, schema=schema))
    assert sample["p"].dtype == np.float32 and sample["r"] == 3

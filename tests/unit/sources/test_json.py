"""read_json: splitting changes nothing, nested fields, types, and exact blame."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.block import Block
from penstock.core.errors import BadData, NotFound, SchemaChanged
from penstock.read.json import read_json
from penstock.sources.text import lines as text_lines


def source_of(*args: Any, **options: Any) -> Any:
    return read_json(*args, **options).node.step.source


def read_all(source: Any) -> Block:
    return Block.concat([b for unit in range(source.num_units()) for b in source.open(unit)])


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "user": {"id": i * 2, "name": f"n{i}"},
            "text": "žluť\n" * (i % 4),
            "tags": list(range(i % 3)),
            "x": i / 2,
        }
        for i in range(count)
    ]


def write(path: Path, values: list[Any], newline: str = "\n") -> Path:
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + newline for v in values), encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("range_nbytes", [50, 333, 8_000_000])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\n\n  \n"])
def test_splitting_changes_nothing(tmp_path: Path, monkeypatch: Any, range_nbytes: int, newline: str) -> None:
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", range_nbytes)
    wanted = rows(40)
    source = source_of(write(tmp_path / "a.jsonl", wanted, newline))
    block = read_all(source)
    assert block.columns["id"].tolist() == list(range(40))
    assert block.columns["user.id"].tolist() == [i * 2 for i in range(40)]
    assert block.columns["user.name"].to_pylist() == [r["user"]["name"] for r in wanted]
    assert block.columns["text"].to_pylist() == [r["text"] for r in wanted]
    assert block.columns["tags"].to_pylist() == [r["tags"] for r in wanted]
    assert source.schema().names == ["id", "user.id", "user.name", "text", "tags", "x"]


def test_compressed_files_and_parts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 700)
    plain = write(tmp_path / "a.jsonl", rows(60)).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(plain))
    source = pickle.loads(pickle.dumps(source_of(tmp_path)))
    assert read_all(source).columns["id"].tolist() == [*range(60)] * 3
    last = source.num_units() - 1
    parts = [b.columns["id"].tolist() for b in source.open(last)]
    assert len(parts) > 5
    assert [b.columns["id"].tolist() for b in source.open(last, 3)] == parts[3:]


def test_features_and_label_make_a_matrix(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(10))
    block = read_all(source_of(path, features=["x", "user.id"], label="id"))
    assert block.tree == ("x", "y") and block.columns["x"].dtype == np.float32
    assert block.columns["x"].tolist() == [[i / 2, i * 2] for i in range(10)]
    assert set(read_all(source_of(path, columns=["user.name"])).columns) == {"user.name"}
    with pytest.raises(NotFound, match=r"no field 'user.nme'. There are: id, user.id, user.name"):
        source_of(path, columns=["user.nme"]).schema()


def test_types_agree_over_samples_and_missing_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"a": 1}, {"a": 2.5, "b": "2020-01-01"}, {"b": "no date"}, {"c": None}])
    block = read_all(source_of(path))
    np.testing.assert_array_equal(block.columns["a"], [1, 2.5, np.nan, np.nan])
    assert block.columns["b"].to_pylist() == [None, "2020-01-01", "no date", None]
    write(tmp_path / "b.jsonl", [{"a": "text"}])
    with pytest.raises(SchemaChanged, match="field 'a' is string here and double elsewhere"):
        source_of([path, tmp_path / "b.jsonl"]).schema()
    assert "a" not in source_of([path, tmp_path / "b.jsonl"], columns=["b"], dtypes={"a": "str"}).schema().names


def test_bad_lines_are_named_by_byte_or_skipped_alone(tmp_path: Path) -> None:
    lines = [json.dumps({"a": i}).encode() for i in range(100_000)]
    bad = {1: b'{"a": ', 40_000: b"garbage", 50_000: b'{"a": "text"}', 60_000: b'{"a": 1}{"a": 2}', 70_000: b"[1]"}
    for row, line in bad.items():
        lines[row] = line
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    source = source_of(path, on_error="skip", dtypes={"a": "int64"})
    block = read_all(source)
    assert block.columns["a"].tolist() == [i for i in range(100_000) if i not in bad]
    assert source.on_error.count == len(bad)
    offset = len(b"\n".join(lines[:70_000])) + 1
    assert str(source.on_error.last).startswith(f"{path}, byte {offset}: ")
    assert block.where(99_990) == f"{path}, byte {len(b'-'.join(lines[:99_995])) + 1}"
    with pytest.raises(BadData, match="byte 9: "):
        read_all(source_of(path))
    strange = write(tmp_path / "b.jsonl", [{"a": 1}] * 3)
    strange.write_bytes(strange.read_bytes() + b'{"a": "x"}\n')
    with pytest.raises(BadData, match=r"byte 27: .*from number to string.*dtypes="):
        read_all(source_of(strange))


def test_text_that_is_not_utf8_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"t": "ok"}\n{"t": "\xff"}\n{"t": "fine"}\n')
    source = source_of(tmp_path / "a.jsonl", on_error="skip")
    assert read_all(source).columns["t"].to_pylist() == ["ok", "fine"] and source.on_error.count == 1


def test_an_array_and_an_endless_line_are_refused_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps(rows(3)))
    with pytest.raises(BadData, match=r"a.json: is one JSON array"):
        source_of(tmp_path / "a.json").schema()
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 100_000)
    long = write(tmp_path / "b.jsonl", [{"a": "x"}, {"a": "y" * 3_000_000}, {"a": "z"}])
    with pytest.raises(BadData, match="byte 11: a line is longer than max_line=1 MB"):
        read_all(source_of(long, max_line="1MB"))
    source = source_of(long, max_line="1MB", on_error="skip")
    assert read_all(source).columns["a"].to_pylist() == ["x", "z"] and source.on_error.count == 1
    assert [len(t) for t in read_all(source_of(long)).columns["a"].to_pylist()] == [1, 3_000_000, 1]


def test_files_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n \n")
    write(tmp_path / "b.jsonl", [{"a": 1}])
    assert read_all(source_of(tmp_path)).columns["a"].tolist() == [1]


def test_a_damaged_stream_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(write(tmp_path / "x", rows(2000)).read_bytes())
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadData, match="gzip stream is damaged or cut short"):
        read_all(source_of(tmp_path / "a.jsonl.gz"))


values = st.fixed_dictionaries(
    {"t": st.text(max_size=20), "n": st.integers(-(2**60), 2**60), "l": st.lists(st.booleans())}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(values, min_size=1, max_size=30), st.integers(1, 300), st.booleans())
def test_any_objects_survive(tmp_path: Path, monkeypatch: Any, wanted: list[Any], nbytes: int, ascii: bool) -> None:
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", nbytes)
    path = tmp_path / "a.jsonl"
    text = "\n".join(json.dumps(v, ensure_ascii=ascii) for v in wanted)
    path.write_bytes(text.encode("utf-8"))
    block = read_all(source_of(path))
    assert block.columns["t"].to_pylist() == [v["t"] for v in wanted]
    assert block.columns["n"].tolist() == [v["n"] for v in wanted]

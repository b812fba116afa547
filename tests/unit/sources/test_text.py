"""read_text: lines and documents."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput
from penstock.read.text import read_text
from penstock.sources.text import lines as text_lines


def source_of(*args: Any, **options: Any) -> Any:
    return read_text(*args, **options).node.step.source


def lines_of(source: Any) -> list[str]:
    return [t for unit in range(source.num_units()) for b in source.open(unit) for t in b.columns["text"].to_pylist()]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12), max_size=20),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_lines_are_those_of_python(
    tmp_path: Path, monkeypatch: Any, wanted: list[str], nbytes: int, newline: str, ended: bool
) -> None:
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", nbytes)
    wanted = [line for line in wanted if not line.startswith("\ufeff")]
    text = newline.join(wanted) + (newline if ended and wanted else "")
    (tmp_path / "a.txt").write_bytes(text.encode())
    expected = wanted if ended or not wanted or wanted[-1] else wanted[:-1]
    source = source_of(tmp_path / "a.txt")
    assert lines_of(source) == expected
    assert lines_of(source_of(tmp_path / "a.txt", skip_blank=True)) == [line for line in expected if line]


def test_lines_that_are_not_text_are_named_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ncaf\xe9\n\nthree")
    with pytest.raises(BadData, match=r"a.txt, byte 4: is not utf-8 text"):
        lines_of(source_of(tmp_path / "a.txt"))
    source = source_of(tmp_path / "a.txt", on_error="skip")
    assert lines_of(source) == ["one", "", "three"] and source.on_error.count == 1
    (block,) = source.open(0)
    assert block.where(2) == f"{tmp_path}/a.txt, byte 10"
    assert lines_of(source_of(tmp_path / "a.txt", encoding="latin-1"))[1] == "café"


def test_compressed_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 64)
    wanted = [f"line {i}" for i in range(200)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(wanted).encode()))
    source = source_of(tmp_path / "a.txt.gz")
    assert lines_of(source) == wanted
    parts = [len(b) for b in source.open(0)]
    assert [len(b) for b in source.open(0, 4)] == parts[4:] and len(parts) > 10


def test_documents_are_rows(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text(f"\ufeffdocument\n{i}" if i else "")
    (tmp_path / "5.txt").write_bytes(b"\xff")
    (tmp_path / "6.txt").write_text("x" * 100)
    source = source_of(tmp_path, by="document", on_error="skip", max_document=50)
    block: Block = source.decode(source.fetch(np.array([3, 0, 5, 6, 1])))
    assert block.columns["text"].to_pylist() == ["document\n3", "", "document\n1"] and source.on_error.count == 2
    assert block.where(2) == f"{tmp_path}/1.txt"
    strict = source_of(tmp_path, by="document", max_document=50)
    with pytest.raises(BadData, match=r"6.txt: is larger than max_document=50 B"):
        strict.decode(strict.fetch(np.array([6])))


def test_wrong_calls(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for options, message in [
        ({"by": "word"}, "by must be"),
        ({"encoding": "utf-17"}, "not known"),
        ({"encoding": "utf-16"}, "cannot be cut"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            read_text(tmp_path, **options)

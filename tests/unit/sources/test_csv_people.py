"""CSV files as people have them: other delimiters, encodings, comments, compression under any name."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import zstandard

import penstock as ps
from penstock.core.errors import BadData, InvalidInput
from penstock.sources.csv.sniff import sniff_delimiter


def written(path: Path, text: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


def columns(dataset: ps.Dataset) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for batch in dataset.batch(100):
        for name, values in batch.items():
            found.setdefault(name, []).extend(values.tolist())
    return found


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(tmp_path: Path, sign: str) -> None:
    text = f"a{sign}b{sign}c\n" + "".join(f'{i}{sign}"x;,|\t{i}"{sign}{i}.5\n' for i in range(50))
    path = written(tmp_path / "a.csv", text)
    wanted = pd.read_csv(path, sep=sign)
    assert columns(ps.read_csv(path)) == {name: wanted[name].tolist() for name in wanted}


def test_decimal_commas_do_not_make_a_comma_the_delimiter() -> None:
    assert sniff_delimiter(b"a;b\n1,5;2,5\n3,5;4\n", '"') == ";"
    assert sniff_delimiter(b"a,b\n1,2\n", '"') == ","
    assert sniff_delimiter(b"only\n1\n2\n", '"') == ","
    assert sniff_delimiter(b'"a;b","c"\n"1;2;3",4\n', '"') == ","


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "gb18030", "shift-jis"])
@pytest.mark.parametrize("packed", [False, True])
def test_other_encodings(tmp_path: Path, encoding: str, packed: bool) -> None:
    word = {"gb18030": "数据|表", "shift-jis": "表ソ能"}.get(encoding, "Größe, é")
    text = "name,n\n" + "".join(f'"{word}{i}",{i}\n' for i in range(3000))
    data = text.encode(encoding)
    path = written(tmp_path / ("a.csv.gz" if packed else "a.csv"), gzip.compress(data) if packed else data)
    found = columns(ps.read_csv(path, encoding=encoding))
    assert found == {"name": [f"{word}{i}" for i in range(3000)], "n": list(range(3000))}


def test_the_error_names_the_encoding_that_it_looks_like(tmp_path: Path) -> None:
    text = "name,n\nGröße,1\n“x”,2\n"
    with pytest.raises(BadData, match=r"byte 7.*encoding='latin-1'"):
        columns(ps.read_csv(written(tmp_path / "a.csv", "name,n\nGröße,1\n", "latin-1")))
    with pytest.raises(BadData, match=r"encoding='(latin-1|cp1252)'"):
        columns(ps.read_csv(written(tmp_path / "b.csv", text, "cp1252")))
    with pytest.raises(BadData, match="encoding='utf-16'"):
        columns(ps.read_csv(written(tmp_path / "c.csv", text, "utf-16")))
    with pytest.raises(InvalidInput, match="encoding='latein'"):
        ps.read_csv(tmp_path / "a.csv", encoding="latein")
    with pytest.raises(BadData, match="a.csv"):
        columns(ps.read_csv(tmp_path / "a.csv", encoding="utf-16"))


def test_comment_lines_are_left_out(tmp_path: Path) -> None:
    rows = "".join(f'# "note {i}\n{i},"x\n# no comment {i}"\n' for i in range(2000))
    path = written(tmp_path / "a.csv", f"# made by hand\n#\na,t\n{rows}# end")
    found = columns(ps.read_csv(path, comment="#"))
    assert found["a"] == list(range(2000))
    assert found["t"] == [f"x\n# no comment {i}" for i in range(2000)]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard.compress], ids=["gzip", "bz2", "zstd"])
def test_compression_is_known_by_content(tmp_path: Path, pack: Any) -> None:
    packed = pack(b"a,b\n1,2\n3,4\n")
    assert columns(ps.read_csv(written(tmp_path / "a.csv", packed))) == {"a": [1, 3], "b": [2, 4]}
    assert columns(ps.read_json(written(tmp_path / "a.jsonl", pack(b'{"a": 1}\n{"a": 2}\n')))) == {"a": [1, 2]}
    assert columns(ps.read_text(written(tmp_path / "a.txt", pack(b"x\ny\n")))) == {"text": ["x", "y"]}


def test_a_quoted_header_that_never_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", '"a,b\n1,2\n3,4\n')
    with pytest.raises(BadData, match=r"a\.csv: a quote in its first line is never closed"):
        columns(ps.read_csv(path))


def test_a_compressed_header_longer_than_the_first_look(tmp_path: Path) -> None:
    names = [f"a_column_with_a_rather_long_name_{i}" for i in range(2500)]
    text = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    path = written(tmp_path / "a.csv.gz", gzip.compress(text.encode()))
    assert len(next(iter(ps.read_csv(path)))) == 2500

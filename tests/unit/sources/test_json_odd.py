"""JSON lines that Arrow cannot infer, refuses or dies of: the same fields as `json.loads`, or one clear error."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import BadData, PenstockError, SchemaChanged


def write(path: Path, *lines: Any) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def samples(dataset: ps.Dataset) -> list[Any]:
    return list(dataset)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_first_line_longer_than_a_sample(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, {"a": 1, "t": "x" * 400_000}, {"a": 2, "t": "y"})
    assert [sample["a"] for sample in samples(ps.read_json(path))] == [1, 2]
    only = write(tmp_path / f"only{name}", {"a": 1, "t": "x" * 400_000})
    assert [len(sample["t"]) for sample in samples(ps.read_json(only))] == [400_000]


def test_a_field_that_has_no_single_type_does_not_vanish(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"id": 0}, {"id": 1, "tokens": [["a", 0]]}, {"id": 2, "deep": {"m": [1, "x"]}})
    with pytest.raises(SchemaChanged, match=r"'tokens' has no single type.*string and int64"):
        samples(ps.read_json(path))
    with pytest.raises(SchemaChanged, match="'deep.m'"):
        samples(ps.read_json(path, columns=["id", "deep.m"]))
    assert [int(sample["id"]) for sample in samples(ps.read_json(path, columns=["id"]))] == [0, 1, 2]


def test_a_field_that_no_sample_had_does_not_vanish(tmp_path: Path) -> None:
    many = [{"a": i, "t": "x" * 100} for i in range(60_000)]  # three samples of 256 KB see a tenth of it
    many[10_000]["rare"] = 7
    path = write(tmp_path / "a.jsonl", *many)
    with pytest.raises(BadData, match=r"byte \d+.*rare.*columns=") as caught:
        samples(ps.read_json(path))
    assert len(str(caught.value)) < 500
    kept = sum(len(batch["a"]) for batch in ps.read_json(path, on_error="skip").batch(1000))
    assert kept == len(many) - 1
    assert sum(len(batch) for batch in ps.read_json(path, features="a").batch(1000)) == len(many)
    found = ps.read_json(path, dtypes={"rare": "float64"}).batch(60_000)
    assert np.nansum(next(iter(found))["rare"]) == 7


def test_lines_that_are_no_objects_are_named(tmp_path: Path) -> None:
    """In a process of its own: Arrow ends it where the first line is null."""
    good = {"a": 1}
    for number, line in enumerate(["null", "1", '"x"', "[1]", "true", '{"a": 1} null', "nul"]):
        write(tmp_path / f"first{number}.jsonl", line, good, good)
        write(tmp_path / f"later{number}.jsonl", good, line, good)
    script = (
        "import sys, pathlib, penstock as ps\n"
        "from penstock.core.errors import BadData\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    try: print(len(list(ps.read_json(path))))\n"
        "    except BadData as error: assert path.name in str(error), error\n"
        "    try: assert len(list(ps.read_json(path, on_error='skip'))) == 2\n"
        "    except BadData as error: assert 'one JSON array' in str(error), error\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), (done.returncode, done.stdout, done.stderr[-500:])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("innermost", ["", "1", '"x"', "[1], [1, 2]"])
def test_deep_arrays_take_no_time(tmp_path: Path, innermost: str) -> None:
    depth = 30
    value = json.loads("[" * depth + innermost + "]" * depth)
    path = write(tmp_path / "a.jsonl", {"a": value})
    started = time.process_time()
    found = samples(ps.read_json(path))[0]["a"]
    assert time.process_time() - started < 20  # 2 ** 30 steps would take days
    for _ in range(depth - 1):
        assert len(found) == 1
        found = found[0]


def test_integers_beyond_64_bits_are_refused_not_rounded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"id": 2**64 - 1, "b": 1}, {"id": 2**53 + 1, "b": 2})
    with pytest.raises(PenstockError, match="'id'"):
        samples(ps.read_json(path))
    assert [int(s["b"]) for s in samples(ps.read_json(path, columns=["b"]))] == [1, 2]
    exact = write(tmp_path / "b.jsonl", {"id": 2**53 + 1}, {"id": -(2**63)}, {"id": 2**63 - 1})
    assert [int(s["id"]) for s in samples(ps.read_json(exact))] == [2**53 + 1, -(2**63), 2**63 - 1]


def test_a_line_that_is_no_json_behind_an_unknown_field_is_a_damaged_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 40_000 + '{"b": 2, "c"}\n' + '{"a": 1}\n' * 200_000)
    with pytest.raises(BadData, match="byte 360000"):
        list(ps.read_json(path))


@pytest.mark.parametrize(
    ("data", "told"),
    [(b'{\n "a": 1\n}\n', "one JSON object over many lines"), ('{"a": 1}\n'.encode("utf-16"), "looks like UTF-16")],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_no_json_lines_is_called_what_it_is(tmp_path: Path, data: bytes, told: str, suffix: str) -> None:
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(BadData, match=rf"a\.json.*{told}"):
        list(ps.read_json(path))


@pytest.mark.parametrize("text", ["{}\n", "{}\n{}\n", "\ufeff{}", '{"a": {}}\n'])
def test_objects_without_fields_are_refused(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(BadData, match=r"a\.jsonl, byte 0: its objects have no fields"):
        list(ps.read_json(tmp_path / "a.jsonl"))


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    assert list(ps.read_json(tmp_path / "a.jsonl")) == []


@pytest.mark.timeout(60)
def test_tens_of_thousands_of_nested_fields_are_planned_in_linear_time(tmp_path):
    """Names were looked for one by one among all fields: 40,000 of them took minutes."""
    row = {f"group {i}": {f"field {j}": i * j for j in range(200)} for i in range(60)}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = list(ps.read_json(tmp_path / "a.jsonl"))
    assert len(found) == 12_000 and found["group 59.field 199"] == 59 * 199


def test_dots_in_names_and_objects_side_by_side(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a.b": 1, "a": {"c": 2, "d.e": {"f": 3}}}\n')
    assert list(ps.read_json(tmp_path / "a.jsonl")) == [{"a.b": 1, "a.c": 2, "a.d.e.f": 3}]

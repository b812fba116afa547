from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.memory.meter import Meter
from penstock.sources.json import numbers as json_numbers
from penstock.sources.json import parse as json_parse
from penstock.sources.json.numbers import objects_of, parse
from penstock.sources.tables.blocks import TableShape

SHAPE = TableShape(label="n")
LOW_NBYTES = 150_000_000
"""Memory left below a low limit, whatever other tests have loaded."""


def kernel_rows(text: bytes, sample: bytes) -> list[tuple[list[float], int]] | None:
    fields = [*json_parse.read(sample, None).schema]
    specs, _ = SHAPE.specs(json_parse.read(sample, None).schema)
    objects = objects_of(fields, SHAPE, specs)
    assert objects is not None
    parsed = parse(memoryview(text), objects)
    if parsed is None:
        return None
    return [(row.tolist(), int(n)) for row, n in zip(parsed.matrix, parsed.integers[0], strict=True)]


NUMBER = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**20), 10**20).map(float))


@given(st.lists(st.tuples(NUMBER, NUMBER, st.integers(-(10**17), 10**17)), min_size=1, max_size=20), st.booleans())
def test_numbers_are_those_of_the_json_module(rows: list[tuple[float, float, int]], tight: bool) -> None:
    separators = (",", ":") if tight else (", ", ": ")
    lines = [json.dumps({"a": a, "b": b, "n": n}, separators=separators) for a, b, n in rows]
    found = kernel_rows(("\n".join(lines) + "\n").encode(), b'{"a": 1.5, "b": 2.5, "n": 3}\n')
    with np.errstate(over="ignore"):
        expected = [([float(np.float32(a)), float(np.float32(b))], n) for a, b, n in rows]
        too_large = [math.isinf(np.float32(v)) for a, b, _ in rows for v in (a, b)]
    values = [v for a, b, _ in rows for v in (a, b)]
    if found is None:  # subnormal or more than 19 digits: PyArrow's
        assert any(too_large) or any(0 < abs(v) < 1e-290 or len(repr(v)) > 18 for v in values)
    else:
        assert found == expected


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1.5, "n": 3, "b": 2.5}',
        '{"a": 1.5, "b": null, "n": 3}',
        '{"a": 1.5, "n": 3}',
        '{"a": 01.5, "b": 2.5, "n": 3}',
        '{"a": 1., "b": 2.5, "n": 3}',
        '{"a": 1.e5, "b": 2.5, "n": 3}',
        '{"a": 1e5., "b": 2.5, "n": 3}',
        '{"a": -, "b": 2.5, "n": 3}',
        '{"a": 1.5, "b": , "n": 3}',
        '{"a": 1.5, "b": 1e, "n": 3}',
        '{"a": 1.5, "b": 00, "n": 3}',
        '{"a": 1.5, "b": 2.5, "n": 03}',
        '{"a": .5, "b": 2.5, "n": 3}',
        '{"a": 1.5, "b": 2.5, "n": 3.5}',
        '{"a": 1.5, "b": 2.5, "n": 3} {}',
        '{"a": 1.5, "b": "x", "n": 3}',
        '{"a": 1.5, "b": 2.5, "n": 3',
        "",
        "[1]",
    ],
)
def test_other_lines_are_handed_back(line: str) -> None:
    good = b'{"a": 1.5, "b": 2.5, "n": 3}\n'
    assert kernel_rows(good * 3, good) is not None
    assert kernel_rows(good + line.encode() + b"\n" + good, good) is None


def test_a_low_limit_reads_with_the_kernel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "t.jsonl", []
    path.write_text("".join(json.dumps({"a": k / 2, "n": k}) + "\n" for k in range(100)))
    real = json_numbers.parse
    monkeypatch.setattr(json_numbers, "parse", lambda *args: seen.append(real(*args)) or seen[-1])
    with ps.limit(Meter().read().nbytes + LOW_NBYTES):
        rows = sum(len(y) for _, y in ps.read_json(str(path), label="n").batch(64))
    assert rows == 100 and seen and all(parsed is not None for parsed in seen)


def test_both_ways_give_the_same_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "t.jsonl"
    rows = [{"a": float(a), "b": float(b), "n": int(i)} for i, (a, b) in enumerate(rng.standard_normal((500, 2)))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = list(ps.read_json(str(path), label="n").batch(64))
    plain = list(ps.read_json(str(path), features=["a", "b"], label="n", dtypes={"n": "int64"}).batch(64))
    assert [y.tolist() for _, y in fast] == [y.tolist() for _, y in plain]
    assert all((x == z).all() for (x, _), (z, _) in zip(fast, plain, strict=True))

"""JSON lines to numbers: those of the json module, at every level, never a byte outside."""

from __future__ import annotations

import json as reference
import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.native import json
from penstock.native.csv import FLOAT, INTEGER, MATRIX, SKIP, Arrays
from penstock.native.library import forced
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

KEYS = (b'"a":', b'"b":', b'"c":', b'"n":')
PLAN = np.array([[MATRIX, FLOAT, SKIP, INTEGER], [0, 0, 0, 0]], np.int64)


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param):
        yield request.param


def read(text: bytes, side: str = "end", rows: int = 8, dtype: type = np.float64) -> tuple[int, int, Arrays]:
    item = np.dtype(dtype).itemsize
    out = Arrays(
        guarded(rows * item, side).view(dtype).reshape(rows, 1),
        guarded(rows * 8, side).view(np.float64).reshape(1, rows),
        guarded(rows * 8, side).view(np.int64).reshape(1, rows),
    )
    why, done = json.read_rows(guarded(text, side), b"".join(KEYS), np.cumsum([*map(len, KEYS)]), PLAN, out)
    return why, done, out


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_those_of_the_json_module(dtype: type, side: str) -> None:
    rng = random.Random(1)
    for trial in range(300):
        rows = []
        for n in range(rng.randrange(1, 9)):
            a = struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0] if rng.random() < 0.5 else rng.gauss(0, 1)
            if not 1e-270 < abs(a) < 1e270:  # others are PyArrow's
                a = 0.5
            rows.append({"a": a, "b": round(a, 4), "c": n / 4, "n": rng.randrange(-(10**18) + 1, 10**18)})
        separators = ((",", ":"), (", ", ": "))[trial % 2]
        text = "\n".join(reference.dumps(row, separators=separators) for row in rows) + "\n" * (trial % 3 > 0)
        why, done, out = read(text.encode(), side, dtype=dtype)
        assert (why, done) == (json.DONE, len(rows))
        with np.errstate(over="ignore"):
            want = np.array([row["a"] for row in rows]).astype(dtype)
        assert out.matrix[:done, 0].tobytes() == want.tobytes()
        assert out.floats[0, :done].tolist() == [row["b"] for row in rows]
        assert out.integers[0, :done].tolist() == [row["n"] for row in rows]


NUMBERS = ["0", "-0", "01", "-01", "1.", ".5", "-.5", "1.e3", "1e3.", "1e", "1e+", "--1", "-", "", "+1", "1 2", "1.2.3",
           "0.5", "-0.25e-3", "1E+05", "12345678901234567", "0x1", "NaN", "null", '"1"', "[1]", "1e5"]  # fmt: skip


@pytest.mark.parametrize("word", NUMBERS)
def test_what_json_does_not_allow_is_not_read(word: str) -> None:
    good = '{"a": 1, "b": 2, "c": 3, "n": 4}\n'
    line = f'{{"a": {word}, "b": 2, "c": 3, "n": 4}}\n'
    try:
        want = reference.loads(line)["a"]
        plain = isinstance(want, int | float) and word != "NaN"
    except ValueError:
        plain = False
    why, done, out = read((good + line + good).encode())
    assert (why, done) == ((json.DONE, 3) if plain else (json.OTHER, 1))
    if plain:
        assert struct.pack("d", out.matrix[1, 0]) == struct.pack("d", float(word))


@pytest.mark.parametrize("side", ["start", "end"])
def test_a_text_may_end_anywhere(side: str) -> None:
    whole = b'{"a": 1.5, "b": -22.25, "c": 3, "n": 4}\r\n{"a":123456789.123456789,"b":1e5,"c":0,"n":-7}\n'
    for size in range(len(whole) + 1):
        why, done, _ = read(whole[:size], side)
        ended = whole[:size].count(b"}")
        sound = not size or whole[:size].rstrip(b"\r\n").endswith(b"}")
        assert (why, done) == ((json.DONE, ended) if sound else (json.OTHER, ended))


def test_no_more_rows_than_there_is_room_for() -> None:
    assert read(b'{"a":1,"b":2,"c":3,"n":4}\n' * 3, rows=2)[:2] == (json.ROWS, 2)


def test_plans_and_keys_that_do_not_fit_are_refused() -> None:
    out = Arrays(np.zeros((2, 1), np.float32), np.zeros((0, 2)), np.zeros((0, 2), np.int64))
    text, ends = np.frombuffer(b"{}", np.uint8), np.array([4, 8], np.int64)
    for plan, keys in (([[1, 1], [0, 1]], b'"a":"b":'), ([[1, 2], [0, 0]], b'"a":"b":'), ([[1, 0], [0, 0]], b'"a":')):
        with pytest.raises(InvalidInput):
            json.read_rows(text, keys, ends, np.array(plan, np.int64), out)

"""CSV lines to numbers: those of float(), at every level, never a byte outside."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.native import csv
from penstock.native.csv import FLOAT, INTEGER, MATRIX, SKIP, Arrays
from penstock.native.library import forced
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

ROOT = Path(__file__).parents[3]
SIDES = ("start", "end")
WORDS = (b"", b"NA")


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param):
        yield request.param


def arrays(rows: int, width: int, dtype: type, side: str, floats: int = 0, integers: int = 0) -> Arrays:
    """Room for so many rows, next to a forbidden page."""
    item = np.dtype(dtype).itemsize
    return Arrays(
        guarded(rows * width * item, side).view(dtype).reshape(rows, width),
        guarded(rows * floats * 8, side).view(np.float64).reshape(floats, rows),
        guarded(rows * integers * 8, side).view(np.int64).reshape(integers, rows),
    )


def plan_of(kinds: list[int], slots: list[int], runs: list[int] | None = None) -> np.ndarray:
    return np.array([kinds, slots, runs or [0] * len(kinds)], np.int64)


def side_by_side(width: int) -> np.ndarray:
    return plan_of([MATRIX] * width, list(range(width)), [*range(width - 1, 0, -1), 0])


def cell(rng: random.Random) -> str:
    def digits(most: int) -> str:
        return "".join(rng.choices("0123456789", k=rng.randrange(most + 1)))

    kind = rng.random()
    if kind < 0.3:
        return f"{rng.uniform(-999, 999):.{rng.randrange(9)}f}"
    if kind < 0.6:
        return repr(struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0])
    if kind < 0.7:
        return rng.choice(["", "NA", "inf", "-Infinity", "nan", " 1.5", "+3", "1.2.3", "-", ".", "-.", "1e", "x"])
    whole, part = digits(rng.choice([1, 3, 22])), digits(rng.choice([6, 17, 24]))
    return (
        rng.choice(["", "-"]) + whole + rng.choice([".", ""]) + part + rng.choice(["", "", f"e{rng.randrange(-9, 9)}"])
    )


def check(word: str, value: float, was_listed: bool, dtype: type) -> None:
    """The kernel's value is that of float(), or the cell was listed or means a missing value."""
    if word.encode() in WORDS:
        assert np.isnan(value) and not was_listed
    elif not was_listed:
        with np.errstate(over="ignore"):
            want = np.array([float(word)]).astype(dtype)  # a double that is between two floats is listed
        assert np.array([value], dtype).tobytes() == want.tobytes(), word


def compare(lines: list[list[str]], dtype: type, side: str, end: str = "\n", last: str = "") -> None:
    """Read lines of numbers, and look at every cell."""
    text, rows, width = end.join(",".join(line) for line in lines) + last, len(lines), len(lines[0])
    out, listed = arrays(rows, width, dtype, side), np.zeros((200, 4), np.int64)
    done = csv.read_rows(guarded(text.encode(), side), side_by_side(width), WORDS, ord(","), out, listed)
    assert done.why == csv.DONE and done.rows == rows and done.nbytes == len(text)
    unsettled = {(r, c): text[a:b] for r, c, a, b in listed[: done.listed].tolist()}
    for r, line in enumerate(lines):
        for c, word in enumerate(line):
            assert unsettled.get((r, c), word) == word
            check(word, out.matrix[r, c], (r, c) in unsettled, dtype)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_those_of_float_or_are_listed(dtype: type, side: str) -> None:
    rng = random.Random(3)
    for trial in range(150):
        width, rows = rng.randrange(1, 9), rng.randrange(1, 12)
        lines = [[cell(rng) for _ in range(width)] for _ in range(rows)]
        if width == 1 and [""] in lines:  # an empty line is no row
            continue
        end = rng.choice(["\n", "\r\n"])
        compare(lines, dtype, side, end, end if trial % 2 else "")


def short_words() -> list[str]:
    """Plain numbers of every short length, with the point in every place or without one."""
    rng, words = random.Random(5), ["0", "-0", "0.0", "-0.0", "9" * 15, "-" + "9" * 14, "." + "9" * 14]
    for length in range(1, 15):
        digits = "".join(rng.choices("0123456789", k=length))
        words += [digits, "-" + digits] + [digits[:at] + "." + digits[at:] for at in range(length + 1)]
    return words + [f"-{word}" for word in words if not word.startswith("-") and len(word) < 15]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_short_numbers_side_by_side(dtype: type, side: str) -> None:
    """Eight are read at once: all short, or one that is not, in each place; rows that are no multiple of eight."""
    words, rng = short_words(), random.Random(6)
    compare([[*words, "1"]], dtype, side)
    for width in range(9, 27):
        lines = [rng.choices(words, k=width) for _ in range(5)]
        for line in lines[1:4]:
            line[rng.randrange(width)] = cell(rng)
        compare(lines, dtype, side)


def test_no_number_is_taken_from_another_line() -> None:
    """A line of too few cells, though eight numbers follow one another in the text."""
    for width, text in ((12, b"1,2,3,4,5\n6,7,8,9,10,11,12\n"), (9, b"1,2,3,4,5,6,7,8\n9\n")):
        out = arrays(4, width, np.float32, "end")
        done = csv.read_rows(guarded(text), side_by_side(width), WORDS, ord(","), out, np.zeros((4, 4), np.int64))
        assert (done.why, done.rows) == (csv.CELLS, 0)


def test_few_numbers_are_listed() -> None:
    """Listing everything would pass the test above."""
    rng = random.Random(4)
    words = [repr(rng.gauss(0, 10.0 ** rng.randrange(-30, 30))) for _ in range(3000)]
    out, listed = arrays(1000, 3, np.float64, "end"), np.zeros((10, 4), np.int64)
    text = "".join(",".join(words[3 * r : 3 * r + 3]) + "\n" for r in range(1000))
    done = csv.read_rows(guarded(text.encode()), side_by_side(3), (), ord(","), out, listed)
    assert (done.why, done.rows, done.listed) == (csv.DONE, 1000, 0)
    assert out.matrix.reshape(-1).tolist() == [float(word) for word in words]


@pytest.mark.parametrize("side", SIDES)
def test_a_text_may_end_anywhere(side: str) -> None:
    whole = b"1.5,-22.25,333\r\n-.5,123456789.123456789012,7e3\n\n" * 3
    for size in range(1, len(whole) + 1):
        for dtype in (np.float32, np.float64):
            out, listed = arrays(12, 3, dtype, side), np.zeros((4, 4), np.int64)
            done = csv.read_rows(guarded(whole[:size], side), side_by_side(3), WORDS, ord(","), out, listed)
            lines = [line for line in whole[:size].decode().splitlines() if line]
            sound = [line for line in lines if line.count(",") == 2]
            if sound == lines and not whole[:size].endswith(b"\r"):
                assert done.why == csv.DONE and done.rows == len(lines)
            else:
                assert done.why == csv.CELLS and done.rows <= len(sound)


def test_columns_of_every_kind_go_to_their_places() -> None:
    plan = plan_of([INTEGER, MATRIX, SKIP, FLOAT, MATRIX], [0, 1, 0, 0, 0])
    out = arrays(2, 2, np.float64, "end", floats=1, integers=1)
    done = csv.read_rows(
        guarded(b"\n1;2;text;3.5;4\r\n\r\n-5;6;;;8"), plan, WORDS, ord(";"), out, np.zeros((1, 4), np.int64)
    )
    assert done.why == csv.DONE and done.rows == 2
    assert out.integers.tolist() == [[1, -5]] and out.matrix.tolist() == [[4, 2], [8, 6]]
    np.testing.assert_array_equal(out.floats, [[3.5, np.nan]])


@pytest.mark.parametrize(
    ("text", "why", "rows"),
    [
        (b"1,2\n3\n", csv.CELLS, 1),
        (b"1,2,3\n", csv.CELLS, 0),
        (b"1,2\rx,3\n", csv.CELLS, 0),
        (b"1,2\n1.5,3\n", csv.NOT_INTEGER, 1),
        (b"1,2\n1234567890123456789,3\n", csv.NOT_INTEGER, 1),
        (b"1,x\n2,y\n3,z\n", csv.LISTED, 2),
        (b"1,2\n" * 5, csv.ROWS, 4),
    ],
)
def test_it_says_how_far_it_got_and_why_it_stopped(text: bytes, why: int, rows: int) -> None:
    out = arrays(4, 1, np.float32, "end", integers=1)
    plan = plan_of([INTEGER, MATRIX], [0, 0])
    done = csv.read_rows(guarded(text), plan, WORDS, ord(","), out, np.zeros((2, 4), np.int64))
    assert (done.why, done.rows) == (why, rows)
    assert text[: done.nbytes].count(b"\n") == rows


@pytest.mark.parametrize(
    "plan",
    [
        plan_of([MATRIX, MATRIX], [0, 2]),
        plan_of([MATRIX, MATRIX], [0, -1]),
        plan_of([MATRIX, 4], [0, 0]),
        plan_of([MATRIX, FLOAT], [0, 0]),
        plan_of([MATRIX, MATRIX], [0, 1], [2, 0]),
        plan_of([MATRIX, MATRIX, MATRIX], [0, 1, 1], [0, 2, 0]),
        plan_of([], []),
    ],
    ids=str,
)
def test_a_plan_that_does_not_fit_is_refused(plan: np.ndarray) -> None:
    out = arrays(4, 2, np.float32, "end")
    with pytest.raises(InvalidInput, match="plan"):
        csv.read_rows(guarded(b"1,2\n"), plan, WORDS, ord(","), out, np.zeros((2, 4), np.int64))


def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput):
        Arrays(np.zeros((3, 1), np.float32), np.zeros((1, 2)), np.zeros((0, 3), np.int64))
    with pytest.raises(InvalidInput):
        Arrays(np.zeros((3, 1), np.float16), np.zeros((1, 3)), np.zeros((0, 3), np.int64))


@pytest.mark.parametrize("side", SIDES)
def test_bytes_are_counted(side: str) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 31, 32, 33, 100, 255 * 32, 20_000):
        text = guarded(rng.choice(np.frombuffer(b"\n\nab\xff", np.uint8), size).tobytes(), side)
        assert csv.count_byte(text, 10) == text.tobytes().count(b"\n")
        assert csv.count_byte(text, 255) == text.tobytes().count(b"\xff")


def test_powers_of_five_are_what_they_should_be() -> None:
    header = (ROOT / "native" / "decimal_powers.h").read_text()
    found = re.findall(r"\{0x([0-9A-F]{16}), 0x([0-9A-F]{16})\}", header)
    assert len(found) == 581
    for power, (high, low) in zip(range(-300, 281), found, strict=True):
        five = 5 ** abs(power)
        if power >= 0:
            want = five << 128 >> five.bit_length()
        else:  # the first 128 bits of 2^k / 5^n
            want = (1 << 3 * five.bit_length() + 128) // five
            want = (want >> want.bit_length() - 128) + (power >= -27)
        assert int(high + low, 16) == want, power

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.sources.csv import numbers as csv_kernel
from penstock.sources.csv.numbers import FLOAT, INTEGER, MATRIX, SKIP, Layout, exact, parse

NULLS = ("", "NA", "null", "nan")


def numbers(words: list[str], dtype: type) -> np.ndarray:
    layout = Layout((MATRIX, SKIP), (0, 0), ",", NULLS, dtype)
    parsed = parse("".join(f"{w},-\n" for w in words).encode(), layout)
    assert parsed is not None
    return parsed.matrix[:, 0]


def decimals(seed: int, count: int) -> list[str]:
    """Decimal numbers of all lengths and notations."""
    rng = random.Random(seed)

    def digits(most: int) -> str:
        return "".join(rng.choices("0123456789", k=rng.randrange(most + 1)))

    def one() -> str:
        whole, part = digits(rng.choice([1, 3, 22])) or "0", digits(rng.choice([6, 17, 24]))
        power = rng.choice(
            ["", "", f"e{rng.randrange(-345, 330)}", f"E+{rng.randrange(30)}", f"e-0{rng.randrange(30)}"]
        )
        return (
            rng.choice(["", "-"])
            + rng.choice([whole, ""] if part else [whole])
            + rng.choice(["." + part, "." + part])
            + power
        )

    return [
        word if any(c.isdigit() for c in word.split("e")[0].split("E")[0]) else "0"
        for word in (one() for _ in range(count))
    ]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_doubles_are_those_of_float(seed: int) -> None:
    words = decimals(seed, 1000)
    for word, value in zip(words, numbers(words, np.float64).tolist(), strict=True):
        assert struct.pack("d", float(word)) == struct.pack("d", value), word


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_floats_are_rounded_once(seed: int) -> None:
    words = decimals(seed, 1000)
    expected = exact(words, np.float32)
    assert expected is not None
    assert numbers(words, np.float32).tobytes() == expected.tobytes()


def test_many_random_doubles_in_full_precision() -> None:
    bits = np.random.default_rng(5).integers(0, 2**63, 40_000, dtype=np.uint64)
    values = bits.view(np.float64)
    values = values[np.isfinite(values)]
    words = [repr(v) for v in values.tolist()]
    np.testing.assert_array_equal(numbers(words, np.float64), values)
    short = [f"{v:.6f}" for v in np.random.default_rng(6).standard_normal(20_000)]
    np.testing.assert_array_equal(numbers(short, np.float64), [float(w) for w in short])


def test_halfway_cases_and_double_rounding() -> None:
    words = ["9007199254740993", "9007199254740993.0000001", "1.00000005960464477539", "1.000000059604644775390625001"]
    np.testing.assert_array_equal(numbers(words, np.float64), [float(w) for w in words])
    # 1 + 2^-24 and a little more: rounding to double first would lose the little and round to even.
    assert numbers(["1.000000059604644775390625001"], np.float32)[0] == np.float32(1.0000001)
    assert numbers(["1.000000059604644775390625"], np.float32)[0] == np.float32(1.0)


def test_words_and_missing_values() -> None:
    got = numbers(["", "NA", "inf", "-Infinity", "null", " 1.5 ", "1e400", "1e-400"], np.float64)
    np.testing.assert_array_equal(got, [np.nan, np.nan, np.inf, -np.inf, np.nan, 1.5, np.inf, 0.0])


@pytest.mark.parametrize("text", [b"1,2\n3\n", b"1,2,3\n", b"1,x\n", b"1,2\rx,3\n", b"1e,2\n", b"1,2\n3,4.5.6\n"])
def test_lines_that_are_not_for_the_kernel_are_handed_back(text: bytes) -> None:
    assert parse(text, Layout((MATRIX, MATRIX), (0, 1), ",", NULLS, np.float64)) is None


def test_integers_columns_and_empty_lines() -> None:
    layout = Layout((INTEGER, MATRIX, SKIP, FLOAT, MATRIX), (0, 1, 0, 0, 0), ";", NULLS, np.float64)
    parsed = parse(memoryview(b"\n1;2;text;3.5;4\r\n\r\n-5;6;;;8"), layout)
    assert parsed is not None
    assert parsed.integers.tolist() == [[1, -5]]
    assert parsed.matrix.tolist() == [[4, 2], [8, 6]]
    np.testing.assert_array_equal(parsed.floats, [[3.5, np.nan]])
    assert parse(b"12345678901234567890;1;;1;1\n", layout) is None
    assert parse(b";1;;1;1\n", layout) is None


def grid(lines: list[list[str]], newline: str, last: bool, layout: Layout) -> csv_kernel.Parsed | None:
    text = newline.join(layout.delimiter.join(cells) for cells in lines) + (newline if last else "")
    # A text that starts inside of something longer, as ranges of files do; what is before it must not matter.
    whole = memoryview(b"9,.-" * 20 + text.encode() + b"7.,-" * 20)
    return parse(whole[80 : 80 + len(text.encode())], layout)


SHAPES = st.from_regex(r"-?[0-9]{0,9}\.?[0-9]{0,9}", fullmatch=True)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda width: st.lists(st.lists(SHAPES, min_size=width, max_size=width), min_size=1, max_size=30)
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_cells_of_every_length_at_every_place_are_what_they_say(
    lines: list[list[str]], newline: str, last: bool, dtype: type
) -> None:
    width = len(lines[0])
    assume(lines != [[""]] or last)  # nothing at all is not asked of the kernel
    got = grid(lines, newline, last, Layout((MATRIX,) * width, tuple(range(width)), ",", NULLS, dtype))
    lines = [cells for cells in lines if width > 1 or cells[0]]  # a line with nothing on it is no row
    cells = [cell for line in lines for cell in line]
    expected = exact(["nan" if cell == "" else cell for cell in cells], dtype)
    if expected is None or any(not any(c.isdigit() for c in cell) for cell in cells if cell):
        assert got is None  # a sign or a point alone is no number
    else:
        assert got is not None
        assert got.matrix.tobytes() == expected.reshape(len(lines), width).tobytes()


@pytest.mark.parametrize(
    "odd", ["-", ".", "-.", "1.2.3", "--1", "1-2", "1.-2", "0x1", "1 2", "1:2", "1/2", "-e", "1_0"]
)
def test_what_looks_like_a_number_from_afar_is_handed_back(odd: str) -> None:
    for column in range(3):
        line = ["1.25", "-2.5", "3"]
        line[column] = odd
        assert grid([["1", "2", "3"]] * 9 + [line], "\n", True, Layout((MATRIX,) * 3, (0, 1, 2), ",", NULLS)) is None


def test_signs_of_zero_and_points_without_digits_beside_them() -> None:
    words = ["-0.0", "0", "-0", ".5", "5.", "-.25", "00012", "-7."]
    got = numbers(["1"] * 9 + words, np.float64)[9:]
    assert got.tobytes() == np.array([float(w) for w in words]).tobytes()


@pytest.mark.parametrize("size", range(40, 140))
def test_a_text_may_end_anywhere(size: int) -> None:
    text = ",".join(["1.5"] * 100)[: size - 2] + ",7"
    cells = text.split(",")
    width = len(cells)
    if any(cell in ("", "1.") for cell in cells):
        cells = [cell or "nan" for cell in cells]
    got = grid([text.split(",")], "\n", False, Layout((MATRIX,) * width, tuple(range(width)), ",", NULLS, np.float64))
    assert got is not None
    np.testing.assert_array_equal(got.matrix[0], [float(cell) for cell in cells])


def test_wide_lines_long_text_and_many_empty_lines() -> None:
    width = 20_000
    lines = [[f"{row + column / 8}" for column in range(width)] for row in range(3)]
    got = grid(lines, "\n", True, Layout((MATRIX,) * width, tuple(range(width)), ",", NULLS))
    assert got is not None
    np.testing.assert_array_equal(got.matrix, np.arange(3)[:, None] + np.arange(width) / 8)
    layout = Layout((MATRIX, SKIP, INTEGER, MATRIX), (1, 0, 0, 0), "|", NULLS)
    text = "\n" * 5000 + "".join(f"{k}.5|{'word, ' * (k * 3000)}|{k}|-{k}\n" + "\r\n" * (k * 2000) for k in range(5))
    parsed = parse(text.encode(), layout)
    assert parsed is not None
    assert parsed.matrix.tolist() == [[-k, k + 0.5] for k in range(5)]
    assert parsed.integers.tolist() == [list(range(5))]


def test_runs_are_columns_that_lie_side_by_side_in_line_and_matrix() -> None:
    layout = Layout(
        (MATRIX, MATRIX, SKIP, MATRIX, MATRIX, MATRIX, INTEGER, MATRIX), (0, 1, 0, 2, 4, 5, 0, 3), ",", NULLS
    )
    assert layout.plan()[2].tolist() == [2, 1, 0, 1, 2, 1, 0, 0]


@pytest.mark.parametrize("word", ["-999", "0", "9.5", ".5", "1e3", "+7"])
@pytest.mark.parametrize("how", [{}, {"features": ["a", "b"]}], ids=["columns", "matrix"])
def test_a_number_that_stands_for_a_missing_value_is_missing(tmp_path, word, how):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n1.5,{word}\n{word},2\n3.25,4\n")
    batch = next(iter(ps.read_csv(str(path), null_values=["", word], **how).batch(3)))
    found = batch if how else np.stack([batch["a"], batch["b"]], axis=1)
    np.testing.assert_array_equal(found, [[1.5, np.nan], [np.nan, 2], [3.25, 4]])

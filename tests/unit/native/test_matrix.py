"""Columns to rows and normalised pictures: the same bits as NumPy's, at every level, never a byte outside."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.native import gather, matrix
from penstock.native.library import forced
from penstock.native.normalise import normalise
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

KINDS = {np.float32: 0, np.float64: 1, np.int32: 2, np.int64: 3}
SIDES = ("start", "end")


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest):
    with forced(request.param):
        yield request.param


def column(dtype: type, nrows: int, seed: int, side: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    room = guarded(nrows * np.dtype(dtype).itemsize, side).view(dtype)
    whole = np.issubdtype(dtype, np.integer)
    room[:] = rng.integers(-(2**31), 2**31, nrows) if whole else rng.normal(size=nrows) * 10.0 ** rng.integers(-50, 50)
    if dtype is np.int64:
        room[::3] = rng.integers(-(2**63), 2**63 - 1, len(room[::3]))
    return room


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("nrows", [1, 7, 255, 256, 257, 1000])
@pytest.mark.parametrize("mixed", [False, True])
def test_columns_become_rows(nrows: int, mixed: bool, side: str) -> None:
    dtypes = [np.float32, np.float64, np.int32, np.int64] if mixed else [np.float32]
    columns = [column(dtypes[k % len(dtypes)], nrows, k, side) for k in range(37)]
    out = guarded(nrows * 40 * 4, side).view(np.float32).reshape(nrows, 40)
    matrix.to_f32([c.ctypes.data for c in columns], [KINDS[c.dtype.type] for c in columns], out, first=2)
    with np.errstate(over="ignore"):
        want = np.column_stack([c.astype(np.float32) for c in columns])
    assert out[:, 2:39].tobytes() == want.tobytes() and not out[:, :2].any() and not out[:, 39:].any()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_eight_byte_columns_are_copied(dtype: type, side: str) -> None:
    columns = [column(dtype, 300, k, side) for k in range(33)]
    out = guarded(300 * 33 * 8, side).view(dtype).reshape(300, 33)
    matrix.copy_u64([c.ctypes.data for c in columns], out)
    assert out.tobytes() == np.column_stack(columns).tobytes()


def test_columns_that_do_not_fit_are_refused() -> None:
    out = np.zeros((4, 3), np.float32)
    where = [np.zeros(4, np.float32).ctypes.data] * 2
    for first, kinds in ((2, [0, 0]), (-1, [0, 0]), (0, [0, 4])):
        with pytest.raises(InvalidInput):
            matrix.to_f32(where, kinds, out, first)
    with pytest.raises(InvalidInput):
        matrix.copy_u64(where, out)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", [(1,), (), (2,), (3,), (5, 33), (700,)], ids=str)
def test_rows_are_gathered_in_any_order(shape: tuple[int, ...], side: str) -> None:
    rng, nbytes = np.random.default_rng(5), 4 * int(np.prod(shape))
    columns = []
    for n in (10, 1, 40):
        room = guarded(n * nbytes, side).view(np.float32).reshape(n, *shape)
        room[:] = rng.normal(size=room.shape)
        columns.append(room)
    order = rng.integers(0, 51, 200)
    out = guarded(200 * nbytes, side).view(np.float32).reshape(200, *shape)
    gather.copy_rows(columns, *gather.locate(order, np.array([10, 11, 51])), out)
    assert np.array_equal(out, np.concatenate(columns)[order])


@pytest.mark.parametrize("blocks", [1, 2, 3, 15, 16, 17, 300])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_rows_are_found_in_their_blocks(blocks: int, count: int) -> None:
    rng = np.random.default_rng(blocks + count)
    sizes = rng.integers(0, 40, blocks)  # some are empty
    sizes[-1] += 1
    ends = np.cumsum(sizes)
    order = rng.integers(0, ends[-1], count)
    which, rows = gather.locate(order, ends)
    assert np.array_equal(which, np.searchsorted(ends, order, "right"))
    assert np.array_equal(rows, order - (ends - sizes)[which])
    for place in range(count):
        outside = order.copy()
        outside[place] = rng.choice([-1, -(2**63), ends[-1], 2**62])
        with pytest.raises(IndexError, match=f"row {outside[place]} "):
            gather.locate(outside, ends)


@pytest.mark.parametrize("row", [-1, 51])
def test_a_row_outside_of_the_window_is_refused(row: int) -> None:
    with pytest.raises(IndexError, match=f"row {row} "):
        gather.locate(np.array([0, 50, row]), np.array([10, 11, 51]))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 9, 3), (19, 33, 3), (3, 5, 5, 4), (1, 23, 17, 16)], ids=str)
def test_pictures_are_normalised_as_numpy_does(
    shape: tuple[int, ...], dtype: type, channels_first: bool, side: str
) -> None:
    rng = np.random.default_rng(9)
    pictures = guarded(int(np.prod(shape)) * np.dtype(dtype).itemsize, side).view(dtype).reshape(shape)
    if np.issubdtype(dtype, np.floating):
        pictures[:] = rng.normal(scale=300, size=shape)
    else:
        bounds = np.iinfo(dtype)
        pictures[:] = rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    mean, std = rng.normal(size=shape[-1]).astype(np.float32), rng.uniform(0.1, 2, shape[-1]).astype(np.float32)
    want = (pictures.astype(np.float32) * np.float32(1 / 255) - mean) / std
    if channels_first:
        want = np.ascontiguousarray(np.moveaxis(want, -1, -3))
    out = guarded(4 * want.size, side).view(np.float32).reshape(want.shape)
    normalise(pictures, out, scale=1 / 255, mean=mean, std=std, channels_first=channels_first)
    assert out.tobytes() == want.tobytes()


def test_pictures_of_other_types_and_shapes_are_refused() -> None:
    good = np.zeros((4, 5, 3), np.uint8)
    for pictures, out in (
        (good.astype(np.complex64), np.zeros((4, 5, 3), np.float32)),
        (good, np.zeros((4, 5, 3), np.float64)),
        (good, np.zeros((3, 4, 5), np.float32)),
        (good[::2], np.zeros((2, 5, 3), np.float32)[:, ::-1]),
    ):
        with pytest.raises(InvalidInput):
            normalise(pictures, out)
    with pytest.raises(InvalidInput):
        normalise(np.zeros((4, 5, 17), np.uint8), np.zeros((17, 4, 5), np.float32), channels_first=True)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("columns", [1, 16, 17, 20, 100])
def test_a_table_is_normalised_in_place_as_numpy_does(columns: int, side: str) -> None:
    rng = np.random.default_rng(3)
    rows = guarded(4 * 51 * columns, side).view(np.float32).reshape(51, columns)
    rows[:] = rng.normal(size=rows.shape)
    mean, std = rng.normal(size=columns).astype(np.float32), rng.uniform(0.1, 2, columns).astype(np.float32)
    want = (rows * np.float32(2.5) - mean) / std
    normalise(rows, rows, scale=2.5, mean=mean, std=std)
    assert rows.tobytes() == want.tobytes()

"""Elements converted one ahead, and arrays where frameworks can take them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.feed.convert import Converted, OneAhead, aligned
from penstock.read.arrays import from_tensor_slices


def numbers():
    return from_tensor_slices(np.arange(20)).batch(3)


def test_one_ahead_gives_the_same_elements():
    plain = [x.tolist() for x in Converted(iter(numbers()), lambda v: v)]
    assert [x.tolist() for x in OneAhead(iter(numbers()), lambda v: v)] == plain
    assert len(plain) == 7


@pytest.mark.parametrize("taken", range(8))
def test_the_position_of_one_ahead_is_that_of_the_consumer(taken):
    ds = numbers()
    ahead = OneAhead(iter(ds), lambda v: v)
    for _ in range(min(taken, 7)):
        next(ahead)
    rest = [x.tolist() for x in numbers().resume(ahead.position)]
    assert rest == [x.tolist() for x in ahead]


def test_an_error_comes_after_the_elements_before_it():
    def breaks(x):
        if x.max() > 10:
            raise OSError("the disk is gone")
        return x

    ahead = OneAhead(iter(numbers().map(breaks)), lambda v: v)
    assert [next(ahead).tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(Exception, match="the disk is gone"):
        next(ahead)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100, dtype=np.float32)[1:],
        np.arange(12).reshape(3, 4).T,
        np.arange(10)[::-1],
        np.broadcast_to(np.float32(3), (4, 4)),
        np.zeros((0, 3)),
    ],
    ids=["part", "transposed", "backwards", "read-only", "empty"],
)
def test_what_lies_elsewhere_is_copied_to_64_bytes(array):
    found = aligned(array)
    assert found.flags.c_contiguous and found.flags.writeable
    assert found.size == 0 or found.ctypes.data % 64 == 0
    assert found.dtype == array.dtype and np.array_equal(found, array)


def test_numbers_of_another_width_are_copied_once():
    found = aligned(np.arange(-3, 5000), np.dtype(np.int32))
    assert found.dtype == np.int32 and found.ctypes.data % 64 == 0
    assert found.tolist() == list(range(-3, 5000))


def test_batches_are_taken_as_they_are():
    for batch in from_tensor_slices(np.zeros((64, 32, 32, 3), np.float32)).shuffle(seed=1).batch(16):
        assert aligned(batch) is batch

"""Arrays in recycled memory: aligned, as NumPy's in every other way, and never more idle bytes than allowed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from penstock.native.arrays import keep_idle, recycled


@pytest.fixture(autouse=True)
def _nothing_idle():
    yield
    keep_idle(0)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_large_arrays_come_back_in_the_same_memory():
    keep_idle(10_000_000)
    with recycled():
        first = np.empty(300_000, np.float32)
        place = address(first)
        del first
        assert address(np.empty(299_000, np.float32)) == place
    assert address(np.empty(300_000, np.float32)) != place


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 63_999, 64_000, 1_000_003])
def test_arrays_begin_at_64_bytes_and_zeros_are_zero(count):
    keep_idle(100_000_000)
    with recycled():
        for _ in range(3):
            dirty = np.full(count, 7, np.float32)
            assert address(dirty) % 64 == 0
            del dirty
            zeros = np.zeros(count, np.float32)
            assert address(zeros) % 64 == 0
            assert not zeros.any()


def test_arrays_grow_and_shrink_as_numpys_do():
    keep_idle(100_000_000)
    with recycled():
        array = np.arange(10)
        for size in (200_000, 300_000, 20, 50_000):
            array.resize(size, refcheck=False)
            assert len(array) == size
            assert array[:10].tolist() == list(range(10))


def test_idle_memory_is_bounded():
    keep_idle(3_000_000)
    with recycled():
        kept = [np.empty(1_000_000, np.uint8) for _ in range(8)]
    assert keep_idle(3_000_000) == 0
    kept.clear()
    assert 1_000_000 <= keep_idle(3_000_000) <= 3_000_000
    assert keep_idle(0) == 0
    with recycled():
        np.empty(5_000_000, np.uint8)
    assert keep_idle(0) == 0


def test_only_the_thread_that_asked_is_given_recycled_memory():
    places = []
    keep_idle(10_000_000)
    with recycled():
        place = address(np.empty(500_000, np.uint8))
        thread = threading.Thread(target=lambda: places.append(address(np.empty(500_000, np.uint8))))
        thread.start()
        thread.join()
    assert places != [place]


def test_many_threads_share_it_without_mixing_their_numbers():
    wrong: list[int] = []

    def work(number: int) -> None:
        with recycled():
            for step in range(60):
                array = np.full(70_000 + step, number, np.int64)
                if (array * 2 != 2 * number).any():
                    wrong.append(number)

    keep_idle(5_000_000)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

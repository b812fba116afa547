"""Rows of mapped files, also of files that are cut short while they are read."""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.native.mapped import take_rows


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "shape"), [("u1", ()), ("f4", ()), ("f8", ()), ("i2", (3,)), ("f4", (5, 7))])
def test_rows_are_numpys(tmp_path: Path, dtype: str, shape: tuple[int, ...], order: Any) -> None:
    rng = np.random.default_rng(3)
    array = np.asarray(rng.integers(0, 100, (500, *shape)), dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    mapped = np.asarray(np.load(tmp_path / "a.npy", mmap_mode="r"))
    rows = rng.integers(0, 500, 300)
    np.testing.assert_array_equal(take_rows(mapped, rows), array[rows])
    assert take_rows(mapped, rows[:0]).shape == (0, *shape)  # type: ignore[union-attr]
    with pytest.raises(IndexError):
        take_rows(mapped, np.array([500]))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_cut_short_is_told_in_every_thread(tmp_path: Path, order: Any) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((5000, 40), np.float32, order=order))
    mapped = np.asarray(np.load(path, mmap_mode="r"))
    rows = np.arange(4000, 5000)
    assert take_rows(mapped, rows) is not None
    os.truncate(path, 4096)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(take_rows(mapped, rows) for _ in range(5))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 20
    was = faulthandler.is_enabled()
    faulthandler.disable()
    faulthandler.enable()  # takes the signal over; the next copy takes it back
    try:
        assert take_rows(mapped, rows) is None
    finally:
        if not was:
            faulthandler.disable()

"""Batch buffers: leased, aligned, and back when the last view is gone."""

from __future__ import annotations

import numpy as np

from penstock.core.schema import Field, Schema
from penstock.engine.slabs import SlabPool
from penstock.memory.budget import Budget

SCHEMA = Schema.of(
    Field("image", np.dtype(np.uint8), (5, 7, 3)),
    Field("when", np.dtype("datetime64[s]")),
    Field("label", np.dtype(np.int64)),
)


def test_arrays_have_shape_dtype_and_alignment():
    pool = SlabPool(Budget(10**6))
    arrays = pool.arrays(SCHEMA, 9, must=True)
    assert arrays is not None
    assert arrays["image"].shape == (9, 5, 7, 3) and arrays["image"].dtype == np.uint8
    assert arrays["when"].dtype == np.dtype("datetime64[s]")
    assert all(a.ctypes.data % 64 == 0 for a in arrays.values())
    arrays["image"][:] = 200
    arrays["label"][:] = -1
    assert (arrays["image"] == 200).all() and (arrays["label"] == -1).all()


def test_a_slab_comes_back_with_its_last_view_and_is_used_again():
    budget = Budget(10**6)
    pool = SlabPool(budget)
    arrays = pool.arrays(SCHEMA, 9, must=True)
    assert arrays is not None
    address = arrays["image"].ctypes.data
    view = arrays["image"][3:5].reshape(2, -1)
    held = budget.used
    del arrays
    assert budget.used == held > 0
    del view
    again = pool.arrays(SCHEMA, 9, must=True)
    assert again is not None and again["image"].ctypes.data == address
    assert budget.used == held
    del again
    pool.close()
    assert budget.used == 0


def test_no_room_is_told_and_a_must_is_granted():
    budget = Budget(5000)
    pool = SlabPool(budget)
    first = pool.arrays(SCHEMA, 4, must=False)
    assert first is not None
    assert pool.arrays(SCHEMA, 4, must=False) is None
    assert pool.arrays(SCHEMA, 4, must=True) is not None
    assert budget.peak > budget.total


def test_arrays_outlive_a_closed_pool():
    budget = Budget(10**6)
    pool = SlabPool(budget)
    arrays = pool.arrays(SCHEMA, 9, must=True)
    assert arrays is not None
    pool.close()
    arrays["label"][:] = 7
    assert arrays["label"].sum() == 63
    assert budget.used > 0
    del arrays
    assert budget.used == 0

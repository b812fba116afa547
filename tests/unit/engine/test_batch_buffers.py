"""Batch buffers: leased, aligned, and back when the last view is gone."""

from __future__ import annotations

import threading

import numpy as np

from penstock.core.schema import Field, Schema
from penstock.engine.buffers import batch as slabs
from penstock.engine.buffers.batch import SlabPool
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


LARGE = 30_000
"""Rows of SCHEMA that make a large slab."""


def taken(pool: SlabPool, count: int) -> list[dict[str, np.ndarray]]:
    found = [pool.arrays(SCHEMA, LARGE, must=True) for _ in range(count)]
    assert all(found)
    return [arrays for arrays in found if arrays is not None]


def test_with_plenty_out_a_large_slab_that_comes_back_in_time_is_used_again(monkeypatch):
    monkeypatch.setattr(slabs, "_PATIENCE_S", 60)
    pool = SlabPool(Budget(10**9))
    out = taken(pool, slabs._PLENTY)
    address = out[0]["image"].ctypes.data
    letting_go = threading.Timer(0.05, lambda: out.pop(0))
    letting_go.start()
    again = pool.arrays(SCHEMA, LARGE, must=False)
    letting_go.join()
    assert again is not None and again["image"].ctypes.data == address


def test_who_keeps_all_batches_is_waited_for_once(monkeypatch):
    waits = []
    pool = SlabPool(Budget(10**9))
    monkeypatch.setattr(pool._returned, "wait", lambda seconds: waits.append(seconds))
    kept = taken(pool, slabs._PLENTY)
    for _ in range(5):
        arrays = pool.arrays(SCHEMA, LARGE, must=False)
        assert arrays is not None
        kept.append(arrays)
    assert len(waits) == 1
    del kept[0], arrays
    kept.append(pool.arrays(SCHEMA, LARGE, must=False))
    assert pool.arrays(SCHEMA, LARGE, must=False) is None, "more than plenty is out and one came back: ask again later"
    assert pool.arrays(SCHEMA, LARGE, must=False) is not None
    assert len(waits) == 1


def test_work_that_has_time_makes_no_large_slab_while_plenty_is_out():
    pool = SlabPool(Budget(10**9))
    out = taken(pool, slabs._PLENTY)
    assert pool.arrays(SCHEMA, LARGE, must=False, spare=True) is None
    out.pop()
    assert pool.arrays(SCHEMA, LARGE, must=False, spare=True) is not None
    assert pool.arrays(SCHEMA, 4, must=False, spare=True) is not None, "small ones are no matter"

"""Buffers of blocks: used again, paid for once, and gone when the run is over."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.core.events import Event, events
from penstock.core.source import NEW_MEMORY
from penstock.engine.buffers.blocks import LENT_NBYTES, BlockBuffers
from penstock.engine.pipe import pipe
from penstock.memory.budget import Budget

SHAPE = (1000, 100)
NBYTES = 1000 * 100 * 8


def lent(pool: BlockBuffers, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return pool.empty(shape, np.float64)


def test_a_buffer_comes_back_with_its_last_view_and_is_used_again() -> None:
    budget = Budget(10**8)
    pool = BlockBuffers(budget)
    array = lent(pool)
    address, view = array.ctypes.data, array[10:20].T
    array[:] = 3
    in_use = budget.used
    assert in_use < 4096, "what is asked for is paid by the reader's own lease, not here"
    del array
    assert budget.used == in_use and (view == 3).all()
    del view
    assert NBYTES <= budget.used < NBYTES + 4096, "an idle buffer is on lease"
    again = lent(pool)
    assert again.ctypes.data == address and budget.used == in_use
    smaller = lent(pool, (999, 100))
    assert smaller.ctypes.data != address
    del again
    close_in_size = lent(pool, (999, 100))
    assert close_in_size.ctypes.data == address
    del smaller, close_in_size
    pool.close()
    assert budget.used == 0


def test_a_full_budget_and_a_closed_pool_keep_nothing() -> None:
    budget = Budget(NBYTES // 2)
    pool = BlockBuffers(budget)
    array = lent(pool)
    del array
    assert budget.used == 0
    roomy = Budget(10**8)
    pool = BlockBuffers(roomy)
    array = lent(pool)
    pool.close()
    array[:] = 1  # still there for whoever holds it
    del array
    assert roomy.used == 0


def test_only_plain_large_arrays_are_lent() -> None:
    pool = BlockBuffers(Budget(10**8))
    assert pool.empty((LENT_NBYTES // 8 - 1,), np.int64).flags.owndata
    assert pool.empty((10**5,), object).flags.owndata
    assert pool.empty((10**5,), np.dtype([("a", "i4"), ("b", "f8")])).dtype.names == ("a", "b")
    assert not pool.empty((10**5,), np.int64).flags.owndata
    assert pool.empty((10**5,), "datetime64[s]").dtype == np.dtype("datetime64[s]")
    assert NEW_MEMORY.empty(SHAPE, np.float64).flags.owndata


def test_a_run_reads_into_few_buffers_and_leaves_nothing(tmp_path) -> None:
    rows = 6000
    columns = {f"f{i}": np.arange(rows, dtype=np.float32) + i for i in range(24)}
    for number in range(12):
        pq.write_table(pa.table({**columns, "y": np.arange(rows)}), tmp_path / f"{number:02d}.parquet")
    leaks: list[Event] = []
    stop = events.listen(lambda event: leaks.append(event) if event.kind == "budget.leaked" else None)
    try:
        seen, batches = set(), 0
        ds = ps.read_parquet(str(tmp_path), label="y").shuffle(seed=1, window=2 * rows).batch(500)
        with iter(ds.repeat(4)) as iterator:
            pool = iterator._run.context.buffers
            assert pool is not None
            made = pool._get
            pool._get = lambda nbytes: seen.add((slab := made(nbytes)).address) or slab  # type: ignore[method-assign]
            for x, y in iterator:
                assert (x[:, 5] == y + 5).all()
                batches += 1
        del x, y  # the last batch is ours as long as we hold it
    finally:
        stop()
    budget = pipe().budget
    assert batches == 4 * 12 * rows // 500 and not leaks
    assert 0 < len(seen) <= 16, "48 blocks were read into these"
    assert budget is not None and budget.used == 0

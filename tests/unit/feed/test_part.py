from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataset import Dataset
from penstock.feed.part import OwnRows, WorkerPart, part_of
from penstock.plan.steps import Batch, Read, Shard
from tests.stand_ins import NumberRows, NumberUnits


def _parts(ds, workers, epoch=0):
    return [list(Dataset(part_of(ds.node, WorkerPart(i, workers, epoch))).at_epoch(epoch)) for i in range(workers)]


def _flat(elements):
    return [int(v) for element in elements for v in np.ravel(element)]


def _whole(ds, epoch=0):
    return list(ds.at_epoch(epoch))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 60),
    size=st.integers(1, 9),
    workers=st.integers(1, 4),
    drop=st.booleans(),
    seed=st.none() | st.integers(0, 3),
    epoch=st.integers(0, 2),
    ranks=st.integers(1, 3),
)
def test_batches_of_rows_are_those_of_a_pass_without_workers(rows, size, workers, drop, seed, epoch, ranks):
    ds = Dataset.of(NumberRows(rows))
    ds = ds if seed is None else ds.shuffle(seed=seed)
    ds = ds.shard(ranks - 1, ranks).map(lambda v: v * 2).batch(size, drop_last=drop)
    parts = _parts(ds, workers, epoch)
    whole = _whole(ds, epoch)
    for index, part in enumerate(parts):
        assert [b.tolist() for b in part] == [b.tolist() for b in whole[index::workers]]


def test_a_worker_fetches_only_rows_of_its_batches():
    ds = Dataset.of(NumberRows(100)).shuffle(seed=1).batch(8).map(lambda b: b + 1)
    node = part_of(ds.node, WorkerPart(1, 2, 0))
    batch = node.input
    assert isinstance(batch.step, Batch)
    assert isinstance(batch.input.step, Read)
    source = batch.input.step.source
    assert isinstance(source, OwnRows)
    assert source.num_rows() == 48
    assert sum(_flat(p) != [] for p in _parts(ds, 2)) == 2


CHAINS = {
    "samples": lambda n: Dataset.of(NumberRows(n)).shuffle(seed=2),
    "samples of a rank": lambda n: Dataset.of(NumberRows(n)).shard(1, 2).shuffle(seed=2),
    "filtered batches": lambda n: Dataset.of(NumberRows(n)).filter(lambda v: v % 3 > 0).batch(4),
    "units": lambda n: Dataset.of(NumberUnits((n // 2, n - n // 2), 7)).shuffle(seed=1).batch(5),
    "units of a rank": lambda n: Dataset.of(NumberUnits((n // 2, n - n // 2), 7)).shard(0, 2).batch(5),
    "units, last dropped": lambda n: Dataset.of(NumberUnits((n,), 7)).batch(5, drop_last=True),
    "taken": lambda n: Dataset.of(NumberRows(n)).batch(4).take(5),
    "repeated": lambda n: Dataset.of(NumberRows(n)).shuffle().repeat(2).batch(4),
    "joined": lambda n: Dataset.of(NumberRows(n)).concatenate(Dataset.of(NumberRows(3))).batch(4),
    "block function": lambda n: Dataset.of(NumberRows(n)).map_batches(lambda v: v[::2]).batch(4),
    "rebatched": lambda n: Dataset.of(NumberRows(n)).batch(4).unbatch().batch(3),
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_workers_together_see_everything_once(chain, workers):
    ds = chain(41)
    parts = _parts(ds, workers)
    assert sorted(v for part in parts for v in _flat(part)) == sorted(_flat(_whole(ds)))


def test_dropped_rows_are_those_of_a_pass_without_workers():
    node = part_of(CHAINS["units, last dropped"](41).node, WorkerPart(0, 2, 0))
    assert isinstance(node.step, Shard), "kept above the batches"

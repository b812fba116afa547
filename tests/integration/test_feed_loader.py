"""ds.torch() inside a DataLoader: every row once per epoch, epochs that go on, whatever the workers are."""

from __future__ import annotations

import threading

import pytest

from penstock.core.errors import PositionError
from penstock.dataset import Dataset
from tests.stand_ins import NumberRows, NumberUnits

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402


def _double(value):
    return value * 2


def _epoch(loader):
    return [[int(v) for v in batch] for batch in loader]


def _rows():
    return Dataset.of(NumberRows(53)).shuffle(seed=3).map(_double).batch(8)


@pytest.mark.parametrize("persistent", [False, True])
def test_forked_workers_give_the_batches_of_one_process(persistent):
    ds = _rows()
    loader = DataLoader(ds.torch(), batch_size=None, num_workers=2, persistent_workers=persistent)
    assert len(loader) == 7
    epochs = [_epoch(loader) for _ in range(3)]
    assert epochs == [[b.tolist() for b in _rows().at_epoch(e)] for e in range(3)]
    del loader


def test_spawned_workers_with_a_lambda():
    ds = Dataset.of(NumberRows(53)).shuffle(seed=3).map(lambda v: v * 2).batch(8)
    how = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
    loader = DataLoader(ds.torch(), batch_size=None, **how)
    epochs = [_epoch(loader) for _ in range(2)]
    assert epochs == [[b.tolist() for b in _rows().at_epoch(e)] for e in range(2)]


def test_epochs_go_on_after_breaking_out_and_after_the_same_seed():
    ds = _rows()
    seen = []
    for _ in range(3):
        torch.manual_seed(7)
        for batch in DataLoader(ds.torch(), batch_size=None, num_workers=2):
            seen.append(batch.tolist())
            break
    assert seen == [next(iter(_rows().at_epoch(e))).tolist() for e in range(3)]
    assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []


@pytest.mark.parametrize("workers", [0, 2])
def test_units_and_samples_are_seen_once(workers):
    units = Dataset.of(NumberUnits((20, 13, 30), 7)).shuffle(seed=1).batch(5)
    samples = Dataset.of(NumberRows(31)).shuffle(seed=1).shard(0, 2)
    batches = _epoch(DataLoader(units.torch(), batch_size=None, num_workers=workers))
    assert sorted(v for batch in batches for v in batch) == list(range(63))
    batches = _epoch(DataLoader(samples.torch(), batch_size=4, num_workers=workers))
    assert sorted(v for batch in batches for v in batch) == sorted(int(v) for v in samples.at_epoch(0))


def test_a_position_is_not_resumed_by_many():
    ds = _rows()
    with iter(ds) as it:
        next(it)
        position = it.position
    with pytest.raises(PositionError, match="num_workers=0"):
        list(DataLoader(ds.resume(position).torch(), batch_size=None, num_workers=1))
    assert len(list(DataLoader(ds.resume(position).torch(), batch_size=None))) == 6

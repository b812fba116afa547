from __future__ import annotations

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.dataset import Dataset
from penstock.feed.spec import check_batched, endless, leaves_of, sharded
from penstock.read.arrays import from_tensor_slices
from tests.stand_ins import NumberRows


def _pairs(n):
    return from_tensor_slices((np.zeros((n, 4, 4, 3), np.uint8), np.arange(n)))


def test_the_last_batch_may_be_short():
    leaf = leaves_of(_pairs(10).batch(4))["0"]
    assert leaf.dtype == np.uint8
    assert leaf.shape == (None, 4, 4, 3)


@pytest.mark.parametrize("ds", [_pairs(10).batch(5), _pairs(10).batch(4, drop_last=True)], ids=["even", "dropped"])
def test_full_batches_have_one_length(ds):
    assert leaves_of(ds)["0"].shape[0] == leaves_of(ds)["1"].shape[0] == ds.peek()[1].shape[0]


def test_filters_leave_the_length_open():
    assert leaves_of(_pairs(10).filter(lambda x, y: y > 1).batch(4))["1"].shape == (None,)


def test_padding_leaves_lengths_open():
    ds = Dataset.of(NumberRows(6)).map(lambda v: np.arange(v + 1)).batch(3, pad=0)
    assert leaves_of(ds)["value"].shape == (3, None)


def test_functions_on_batches_keep_the_rest():
    ds = _pairs(10).batch(4).map(lambda x, y: (x.reshape(len(x), -1).astype(np.float32), y))
    assert leaves_of(ds)["0"].shape == (None, 48)
    assert leaves_of(ds)["0"].dtype == np.float32


def test_text_has_no_dtype_and_times_are_integers():
    ds = from_tensor_slices({"s": np.array(["a", "b"], object), "t": np.array([1, 2], "datetime64[s]")}).batch(2)
    leaves = leaves_of(ds)
    assert leaves["s"].dtype is None
    assert leaves["t"].dtype == np.int64


def test_looking_does_not_use_up_an_epoch():
    ds = Dataset.of(NumberRows(30)).shuffle(seed=3).map(lambda v: v + 1).batch(7)
    leaves_of(ds)
    assert [b.tolist() for b in ds] == [b.tolist() for b in ds.at_epoch(0)]


def test_endless_and_sharded():
    ds = Dataset.of(NumberRows(3))
    assert endless(ds.repeat().batch(2).node)
    assert not endless(ds.repeat().take(5).node)
    assert not endless(ds.repeat(2).node)
    assert sharded(ds.shard(0, 2).batch(2).node)
    assert not sharded(ds.batch(2).node)


def test_models_need_batches():
    with pytest.raises(InvalidInput, match="batch"):
        check_batched(Dataset.of(NumberRows(3)), "ds.keras()")

"""The worst batch: at least as large as each one looked at, of values the model knows."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.guard.forecast.rehearse import lengths_vary, stretched, worst_batch


def ragged(lengths):
    samples = [(np.arange(1, n + 1, dtype=np.int32), np.float32(n)) for n in lengths]
    return ps.from_generator(lambda: iter(samples))


def test_padded_batches_vary_and_others_do_not():
    ds = ragged([3, 5, 2, 9])
    assert lengths_vary(ds.batch(2, pad=True))
    assert lengths_vary(ds.batch(2, pad=True).map(lambda b: b))
    assert not lengths_vary(ps.from_tensor_slices(np.zeros((8, 2))).batch(2))
    assert not lengths_vary([np.zeros(3)])


def test_every_extent_is_the_largest_and_no_epoch_is_used_up():
    ds = ragged([3, 5, 2, 9, 4, 1, 1]).batch(2, pad=True)
    x, y = worst_batch(ds)
    assert x.shape == (2, 9) and y.shape == (2,)
    assert set(np.unique(x)) <= {0, 1, 2, 3, 4, 5}  # of the first batch, repeated
    seen = [len(batch[1]) for batch in ds]
    assert seen == [2, 2, 2, 1]
    assert sum(1 for _ in ds) == 4  # the next epoch


def test_looking_ends_in_time():
    now = iter(range(100))
    found = worst_batch([np.zeros((1, n)) for n in (1, 2, 3, 50)], seconds=2, clock=lambda: next(now))
    assert found.shape == (1, 2)
    assert worst_batch([]) is None


@pytest.mark.parametrize("shape", [(4, 7), (2, 3), (5, 2)])
def test_stretched_repeats_what_is_there(shape):
    out = stretched(np.arange(6).reshape(2, 3), shape)
    assert out.shape == shape and set(out.ravel()) <= set(range(6))
    assert stretched(None, ()) is None

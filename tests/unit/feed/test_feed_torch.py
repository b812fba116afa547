from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.dataset import Dataset
from penstock.read.arrays import from_tensor_slices
from tests.stand_ins import NumberRows

torch = pytest.importorskip("torch")


def _images(n=40):
    pixels = np.random.default_rng(0).integers(0, 255, (n, 8, 8, 3), dtype=np.uint8)
    return from_tensor_slices((pixels, np.arange(n)))


def _threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("penstock")]


def test_tensors_lie_over_the_batch_buffer():
    from penstock.feed.torch import to_tensor

    ds = _images().batch(16)
    for x, y in ds:
        tensor = to_tensor(x)
        assert tensor.data_ptr() == x.ctypes.data
        assert np.shares_memory(tensor.numpy(), x)
        assert tensor.dtype == torch.uint8
        assert to_tensor(y).dtype == torch.int64


def test_held_tensors_are_never_written_over():
    ds = _images(200).batch(8)
    held = [(x, x.clone()) for x, _ in ds.torch()]
    assert len(held) == 25
    assert all(torch.equal(x, copy) for x, copy in held)


def test_structure_strings_times_and_raggeds():
    ds = from_tensor_slices(
        {
            "a": np.arange(4.0),
            "t": np.array(["x", "yy", "z", ""], dtype=object),
            "when": np.array(["2020-01-01", "2020-01-02"] * 2, dtype="datetime64[D]"),
        }
    ).batch(4)
    (batch,) = list(ds.torch())
    assert set(batch) == {"a", "t", "when"}
    assert batch["t"] == ["x", "yy", "z", ""]
    assert batch["a"].dtype == torch.float64
    assert batch["when"].tolist() == [18262, 18263, 18262, 18263]


def test_read_only_and_reversed_arrays_are_copied():
    from penstock.feed.torch import to_tensor

    fixed = np.arange(5)
    fixed.flags.writeable = False
    tensor = to_tensor(fixed)
    tensor[0] = 9
    assert fixed[0] == 0
    assert to_tensor(np.arange(3)[::-1]).tolist() == [2, 1, 0]
    assert to_tensor(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]
    assert to_tensor(np.float32(2)).dtype == torch.float32


def test_each_pass_is_the_next_epoch_also_over_several_feeds():
    ds = Dataset.of(NumberRows(50)).shuffle(seed=5).batch(10)
    feed = ds.torch()
    assert len(feed) == 5
    first = [b.tolist() for b in feed]
    second = [b.tolist() for b in ds.torch()]
    third = [b.tolist() for b in feed]
    assert first != second != third != first
    assert [b.tolist() for b in ds.at_epoch(1)] == second
    with pytest.raises(InvalidInput):
        ds.at_epoch(-1)


def test_breaking_out_leaves_no_thread():
    before = _threads()
    for _ in _images(2000).shuffle().batch(4).torch():
        break
    assert _threads() == before


def test_positions_go_through_the_feed():
    ds = Dataset.of(NumberRows(50)).shuffle(seed=5).batch(10)
    with iter(ds.torch()) as it:
        next(it)
        position = it.position
        rest = [b.tolist() for b in it]
    assert [b.tolist() for b in ds.resume(position).torch()] == rest


def test_a_dataset_with_a_lambda_pickles():
    ds = Dataset.of(NumberRows(12)).shuffle(seed=1).map(lambda v: v + 1).batch(5)
    list(ds)
    copy = pickle.loads(pickle.dumps(ds))
    assert [b.tolist() for b in copy] == [b.tolist() for b in ds]
    assert [b.tolist() for b in pickle.loads(pickle.dumps(ds.torch()))] == [b.tolist() for b in ds]


def test_unknown_length():
    ds = Dataset.of(NumberRows(12)).filter(lambda v: v > 3).batch(5)
    with pytest.raises(TypeError):
        len(ds.torch())
    assert sum(len(b) for b in ds.torch()) == 8

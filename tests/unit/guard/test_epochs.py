"""Epochs over a dataset, from any place on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.guard.epochs import Epochs


class Counting:
    """A dataset of n numbers per epoch; like penstock's it gives positions and each iteration is the next epoch."""

    def __init__(self, n, epoch=0, start=0):
        self.n, self.epoch, self.start = n, epoch, start

    def __iter__(self):
        iterator = Iterator(self.n, self.epoch, self.start)
        self.epoch, self.start = self.epoch + 1, 0
        return iterator

    def resume(self, position):
        return Counting(self.n, position["epoch"], position["done"])


class Iterator:
    def __init__(self, n, epoch, done):
        self.n, self.epoch, self.done = n, epoch, done

    def __iter__(self):
        return self

    def __next__(self):
        if self.done == self.n:
            raise StopIteration
        self.done += 1
        return self.epoch * 100 + self.done

    @property
    def position(self):
        return {"epoch": self.epoch, "done": self.done}


def run(epochs, count, done=0):
    """Batches of `count` epochs with the place and epoch after each."""
    out = []
    for epoch in range(count):
        out += [(batch, epoch, json.loads(json.dumps(epochs.place))) for batch in epochs.epoch(done)]
        done = 0
    return out


@pytest.mark.parametrize("steps", [None, 3, 7])
@pytest.mark.parametrize("make", [lambda: Counting(5), lambda: list(range(1, 6))], ids=["dataset", "list"])
def test_resuming_at_any_batch_yields_the_same_rest(make, steps):
    whole = run(Epochs(make(), steps=steps), 3)
    for i, (_, epoch, place) in enumerate(whole):
        done = sum(1 for _, e, _ in whole[: i + 1] if e == epoch)
        again = Epochs(make(), steps=steps)
        again.resume(place)
        rest = [batch for batch, _, _ in run(again, 3 - epoch, done)]
        assert rest == [batch for batch, _, _ in whole[i + 1 :]]


def test_resuming_at_the_end_of_an_epoch_starts_the_next():
    epochs = Epochs(Counting(3))
    assert list(epochs.epoch()) == [1, 2, 3]
    place = epochs.place
    assert place["ended"]
    again = Epochs(Counting(3))
    again.resume(place)
    assert list(again.epoch()) == [101, 102, 103]


def test_an_iterator_is_read_once():
    epochs = Epochs(iter([np.zeros(2)] * 3))
    assert len(list(epochs.epoch())) == 3
    with pytest.raises(InvalidInput, match="read once"):
        list(epochs.epoch())


def test_no_batches_is_said():
    with pytest.raises(InvalidInput, match="no batches"):
        list(Epochs([], steps=2).epoch())

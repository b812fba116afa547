"""Permutations as arithmetic: complete, different by key, as random as a shuffle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.permutation import Permutation, generator, key_of
from penstock.order.stripe import Stripe


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_every_number_comes_once(n, key):
    assert np.array_equal(np.sort(Permutation(n, key).at(np.arange(n))), np.arange(n))


@given(st.integers(2, 10**15), st.integers(0, 2**63))
def test_any_place_of_any_length_without_a_list(n, key):
    places = np.array([0, n // 2, n - 1])
    found = Permutation(n, key).at(places)
    assert len(set(found.tolist())) == len(set(places.tolist()))
    assert found.min() >= 0 and found.max() < n


@pytest.mark.parametrize("n", [100, 1000, 65_537, 200_000])
def test_looks_like_a_uniform_shuffle(n):
    order = Permutation(n, key_of("test", n)).at(np.arange(n))
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(n)
    assert np.abs(order - np.arange(n)).mean() / (n / 3) == pytest.approx(1, abs=4 / np.sqrt(n))
    assert (np.diff(order) > 0).mean() == pytest.approx(0.5, abs=3 / np.sqrt(n))


def test_keys_give_different_orders():
    orders = [tuple(Permutation(50, key_of(1, epoch)).at(np.arange(50))) for epoch in range(20)]
    assert len(set(orders)) == 20


def test_generators_depend_on_the_key_alone():
    first = generator("a", 1).random(3)
    generator("b", 2).random(100)
    assert np.array_equal(first, generator("a", 1).random(3))


@given(st.integers(0, 500), st.integers(1, 9), st.integers(0, 50))
def test_stripes_cover_every_place_once(total, world, start):
    places = [place for rank in range(world) for place in _places(Stripe(rank, world, start), total)]
    assert sorted(places) == list(range(start, total))


def _places(stripe, total):
    return stripe.places(0, stripe.count(total)).tolist()

"""Every chain resumes at every element, from a small piece of JSON."""

from __future__ import annotations

import json

import pytest

from penstock.core.errors import PositionError
from tests.contract.chains import CHAINS, elements, plain, rows, units


@pytest.mark.parametrize("name", CHAINS)
def test_resuming_at_any_point_yields_the_same_rest(name):
    ds = CHAINS[name]
    whole, places = [], []
    iterator = iter(ds)
    epoch = iterator.position["epoch"]
    places.append(json.dumps(iterator.position))
    for element in iterator:
        whole.append(plain(element))
        places.append(json.dumps(iterator.position))
    assert whole
    for done, place in enumerate(places):
        assert len(place) < 1000
        assert json.loads(place)["done"] == done
        assert json.loads(place)["epoch"] == epoch
        assert elements(ds.resume(place)) == whole[done:]


@pytest.mark.parametrize("name", CHAINS)
def test_length_is_right_where_it_is_known(name):
    ds = CHAINS[name]
    if ds.cardinality is not None and "shard units" not in name and "few" not in name:
        assert ds.cardinality == len(elements(ds))


def test_epochs_differ_and_repeat_with_the_same_seed():
    first = units((50,) * 9, 10).shuffle(seed=7).batch(10)
    second = units((50,) * 9, 10).shuffle(seed=7).batch(10)
    epochs = [elements(first), elements(first)]
    assert epochs[0] != epochs[1]
    assert [elements(second), elements(second)] == epochs
    assert sorted(value for batch in epochs[0] for value in batch) == list(range(450))


def test_resume_continues_with_the_epochs_that_follow():
    ds = rows(40).shuffle(seed=1).batch(8)
    iterator = iter(ds)
    next(iterator)
    place = iterator.position
    rest, following = elements(iterator), elements(ds)
    again = rows(40).shuffle(seed=1).batch(8).resume(place)
    assert elements(again) == rest
    assert elements(again) == following


def test_position_of_another_plan_or_other_data_is_refused():
    place = iter(rows().batch(4)).position
    with pytest.raises(PositionError, match="another chain"):
        rows().batch(5).resume(place)
    with pytest.raises(PositionError, match="data has changed"):
        rows(21).batch(4).resume(place)
    with pytest.raises(PositionError, match="not a position"):
        rows().batch(4).resume({"hello": 1})

"""The number of ranks may change in the middle of an epoch: nothing is lost and nothing comes twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import PositionError
from tests.contract.chains import double, pieces, rows, units

CHAINS = {
    "rows": lambda: rows(211).shuffle(seed=3),
    "rows mapped": lambda: rows(211).shuffle(seed=3).map(double),
    "rows normalised": lambda: rows(211).shuffle(seed=3).normalise(scale=2),
    "units normalised": lambda: units((5, 9, 1, 4) * 12, 3).shuffle(seed=2, window=17).normalise(scale=2),
    "many units": lambda: units((5, 9, 1, 4) * 12, 3),
    "many units shuffled": lambda: units((5, 9, 1, 4) * 12, 3).shuffle(seed=2, window=17),
    "shuffled and filtered": lambda: units((5, 9, 1, 4) * 12, 3).shuffle(seed=2).filter(lambda x: x % 3 != 1),
    "scattered pieces": lambda: pieces(311).shuffle(seed=2),
    "scattered pieces in windows": lambda: pieces(311).shuffle(seed=2, window=17).map(double),
    "few blocks of pieces": lambda: pieces(40).shuffle(seed=2),
    "few units": lambda: units((50, 70), 7).shuffle(seed=2, window=20),
}


def values(batches):
    return [int(v) for batch in batches for v in batch]


def run_phase(chain, world, taken, places):
    """Each rank takes some batches; returns all rows and the positions reached."""
    seen, reached = [], []
    for rank in range(world):
        ds = chain().shard(rank, world).batch(4)
        if places is not None:
            ds = ds.resume(places)
        with iter(ds) as iterator:
            for _ in range(taken[rank % len(taken)]):
                batch = next(iterator, None)
                if batch is None:
                    break
                seen += values([batch])
            reached.append(json.loads(json.dumps(iterator.position)))
    return seen, reached


@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=8, deadline=None)
@given(
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    taken=st.lists(st.integers(0, 5), min_size=3, max_size=5),
)
def test_changing_worlds_sees_every_row_once(name, worlds, taken):
    chain = CHAINS[name]
    expected = sorted(values(chain().batch(10)))
    seen, places = [], None
    for world in worlds:
        rows_seen, places = run_phase(chain, world, taken, places)
        seen += rows_seen
    last = worlds[-1] % 3 + 1
    for rank in range(last):
        seen += values(chain().shard(rank, last).batch(4).resume(places))
    assert sorted(seen) == expected


def test_one_position_of_another_world_is_refused():
    place = iter(rows().shard(0, 2).batch(4)).position
    it = iter(rows().shard(0, 2).batch(4))
    next(it)
    with pytest.raises(PositionError, match="positions of all"):
        rows().shard(0, 3).batch(4).resume(it.position)
    with pytest.raises(PositionError, match="rank 0; this is rank 1"):
        rows().shard(1, 2).batch(4).resume(it.position)
    assert place["done"] == 0

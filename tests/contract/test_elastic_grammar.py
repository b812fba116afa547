"""Chains made up at random, whose number of ranks changes at random: the rows of a plain Python list, or a refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import PositionError
from penstock.dataset import Dataset
from tests.contract.chains import rows, units

Ids = list[int]


def kept(x: Any) -> bool:
    return bool(x % 3 != 1)


def shifted(x: Any) -> Any:
    return x + 1000


@dataclass(frozen=True)
class Verb:
    """One step, on a dataset and on the list that says what must come out. An inelastic one may be refused."""

    name: str
    argument: Any = None

    @property
    def elastic(self) -> bool:
        return self.name in ("shuffle", "map", "filter", "repeat")

    def on(self, ds: Dataset) -> Dataset:
        match self.name:
            case "shuffle":
                return ds.shuffle(seed=5, window=self.argument)
            case "map":
                return ds.map(shifted)
            case "filter":
                return ds.filter(kept)
            case "repeat":
                return ds.repeat(self.argument)
            case "take":
                return ds.take(self.argument)
            case "zip":
                return ds.zip(rows(1000)).map(lambda a, b: a)
            case "interleave":
                return ds.interleave(rows(self.argument).map(lambda x: x + 5000), weights=[1, 1], seed=3)
        raise AssertionError(self.name)

    def on_list(self, ids: Ids) -> Ids:
        match self.name:
            case "map":
                return [shifted(x) for x in ids]
            case "filter":
                return [x for x in ids if kept(x)]
            case "repeat":
                return ids * self.argument
            case "take":
                return ids[: self.argument]
            case "interleave":
                return ids + [5000 + x for x in range(self.argument)]
        return ids


@dataclass(frozen=True)
class Chained:
    """A source, verbs before and after the shard, a batch or none, a repeat of batches or none."""

    sizes: tuple[int, ...]
    part: int
    before: tuple[Verb, ...]
    after: tuple[Verb, ...]
    batch: int | None
    again: int

    def dataset(self, rank: int, world: int) -> Dataset:
        ds = units(self.sizes, self.part) if self.part else rows(sum(self.sizes))
        for verb in self.before:
            ds = verb.on(ds)
        ds = ds.shard(rank, world)
        for verb in self.after:
            ds = verb.on(ds)
        if self.batch:
            ds = ds.batch(self.batch)
        return ds.repeat(self.again) if self.again > 1 else ds

    def ids(self) -> Ids:
        """What all ranks together must see."""
        found = list(range(sum(self.sizes)))
        for verb in (*self.before, *self.after):
            found = verb.on_list(found)
        return sorted(found * self.again)

    @property
    def must_divide(self) -> bool:
        """Whether it is promised that the number of ranks may change."""
        if any(verb.name == "repeat" for verb in self.before):
            return False
        repeats = [i for i, verb in enumerate(self.after) if verb.name == "repeat"]
        if len(repeats) + (self.again > 1) > 1:
            return False
        late_shuffle = repeats and any(verb.name == "shuffle" for verb in self.after[repeats[0] :])
        return not late_shuffle and all(verb.elastic for verb in (*self.before, *self.after))


SOURCES = st.one_of(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=60).map(tuple), st.integers(1, 5)),
    st.tuples(st.integers(1, 150).map(lambda n: (n,)), st.just(0)),
)
SHUFFLE = st.builds(Verb, st.just("shuffle"), st.sampled_from([None, 7, 30]))
ROWWISE = st.sampled_from([Verb("map"), Verb("filter")])
REPEAT = st.builds(Verb, st.just("repeat"), st.integers(2, 3))
OTHERS = st.one_of(
    st.builds(Verb, st.just("take"), st.integers(1, 60)),
    st.just(Verb("zip")),
    st.builds(Verb, st.just("interleave"), st.integers(1, 30)),
)
CHAINS = st.builds(
    lambda source, **rest: Chained(*source, **rest),
    SOURCES,
    before=st.lists(st.one_of(SHUFFLE, ROWWISE), max_size=2).map(tuple),
    after=st.lists(st.one_of(SHUFFLE, ROWWISE, REPEAT), max_size=3).map(tuple),
    batch=st.sampled_from([None, 1, 4, 11]),
    again=st.sampled_from([1, 1, 2]),
)
MIXED = st.builds(
    lambda source, **rest: Chained(*source, **rest),
    SOURCES,
    before=st.lists(st.one_of(SHUFFLE, ROWWISE, REPEAT, OTHERS), max_size=3).map(tuple),
    after=st.lists(st.one_of(SHUFFLE, ROWWISE, REPEAT), max_size=2).map(tuple),
    batch=st.sampled_from([None, 4]),
    again=st.sampled_from([1, 2]),
)
WORLDS = st.lists(st.integers(1, 5), min_size=2, max_size=4)
TAKEN = st.lists(st.integers(0, 9), min_size=3, max_size=5)


def values(chain: Chained, element: Any) -> Ids:
    return [int(v) for v in element] if chain.batch else [int(element)]


def phase(chain: Chained, world: int, taken: list[int] | None, places: list[Any] | None) -> tuple[Ids, list[Any]]:
    """Every rank takes some elements (all of them if `taken` is None) and says where it stands."""
    seen: Ids = []
    reached = []
    for rank in range(world):
        ds = chain.dataset(rank, world)
        if places is not None:
            ds = ds.resume(places)
        left = 1 << 30 if taken is None else taken[rank % len(taken)] * (1 if chain.batch else 5)
        with iter(ds) as iterator:
            while left and (element := next(iterator, None)) is not None:
                seen += values(chain, element)
                left -= 1
            reached.append(json.loads(json.dumps(iterator.position)))
    return seen, reached


def changing(chain: Chained, worlds: list[int], taken: list[int]) -> Ids:
    seen: Ids = []
    places = None
    for number, world in enumerate(worlds):
        found, places = phase(chain, world, taken if number < len(worlds) - 1 else None, places)
        seen += found
    return sorted(seen)


@settings(max_examples=80, deadline=None)
@given(chain=CHAINS, worlds=WORLDS, taken=TAKEN)
def test_changing_worlds_sees_every_row_once_or_is_refused(chain, worlds, taken):
    try:
        found = changing(chain, worlds, taken)
    except PositionError as error:
        assert not chain.must_divide, error
        return
    assert found == chain.ids()


@settings(max_examples=40, deadline=None)
@given(chain=MIXED, worlds=WORLDS, taken=TAKEN)
def test_chains_of_any_kind_are_right_or_refused(chain, worlds, taken):
    expected = sorted(phase(chain, worlds[0], None, None)[0])
    if not any(verb.name in ("shuffle", "take") for verb in chain.before):
        assert expected == chain.ids()
    try:
        found = changing(chain, worlds, taken)
    except PositionError as error:
        assert not chain.must_divide, error
        return
    assert found == expected


@settings(max_examples=30, deadline=None)
@given(chain=MIXED, world=st.integers(1, 4), taken=TAKEN)
def test_as_many_ranks_as_before_go_on_whatever_the_chain(chain, world, taken):
    expected = sorted(phase(chain, world, None, None)[0])
    seen, places = phase(chain, world, taken, None)
    for rank, place in enumerate(places):
        with iter(chain.dataset(rank, world).resume(place)) as rest:
            for element in rest:
                seen += values(chain, element)
    assert sorted(seen) == expected


@pytest.mark.parametrize("batch", [4, None])
def test_a_repeat_between_shard_and_batch_counts_rows(batch):
    """What once came twice: 24 rows repeated, 3 batches taken by the only rank."""
    chain = Chained((24,), 0, (), (Verb("repeat", 2),), batch, 1)
    assert changing(chain, [1, 1, 2], [3]) == sorted([*range(24)] * 2)


def test_empty_units_do_not_make_the_order_depend_on_timing():
    def order() -> list[int]:
        return [int(x) for x in units((0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2), 1).shuffle(seed=5).repeat(2)]

    assert len({tuple(order()) for _ in range(40)}) == 1

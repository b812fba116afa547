"""A cached chain yields what the same chain yields without its cache, in every epoch, from every position."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.dataset import Dataset
from penstock.read import from_tensor_slices, read_numpy, read_text
from tests.contract.chains import double, elements, even, plain, rows, units

Cache = Callable[[Dataset], Dataset]


def text_of(x: Any) -> dict[str, Any]:
    return {"n": x, "words": "a" * int(x), "ragged": np.arange(int(x) % 4)}


def pixels(x: Any) -> np.ndarray:
    return np.full((3, 2), x, dtype=np.uint8)


CHAINS: dict[str, Callable[[Cache], Dataset]] = {
    "rows": lambda c: c(rows()).batch(6),
    "rows mapped": lambda c: c(rows().map(double)).map(double).batch(6),
    "rows of arrays": lambda c: c(rows().map(pixels)).shuffle(seed=3).batch(6),
    "rows shuffled": lambda c: c(rows().map(double)).shuffle(seed=1).batch(6),
    "rows filtered": lambda c: c(rows().map(double).filter(lambda x: x % 3 == 0)).shuffle(seed=1).batch(4),
    "rows of no fixed size": lambda c: c(rows().map(text_of)).shuffle(seed=2),
    "rows sharded": lambda c: c(rows().map(double)).shuffle(seed=2).shard(1, 3).batch(4),
    "rows in blocks": lambda c: c(rows().map_batches(double)).batch(4),
    "units": lambda c: c(units()).batch(6),
    "units mapped": lambda c: c(units().map(double).filter(even)).map(double).batch(4),
    "units of text": lambda c: c(units().map(text_of)),
    "units shuffled": lambda c: c(units().map(double)).shuffle(seed=2, window=9).batch(4),
    "units sharded": lambda c: c(units((3,) * 12).map(double)).shuffle(seed=2).shard(1, 3).batch(4),
    "twice": lambda c: c(c(rows().map(double)).map(double)).shuffle(seed=1).batch(6),
    "repeated": lambda c: c(rows(7).map(double)).shuffle(seed=1).batch(3).repeat(3),
    "text of arrays": lambda c: c(from_tensor_slices({"t": ["a", "bb", None, "d"], "x": [1, 2, 3, 4]})).shuffle(seed=1),
}


def uncached(ds: Dataset) -> Dataset:
    return ds


@pytest.fixture(params=["memory", "folder"])
def cache(request: pytest.FixtureRequest, tmp_path: Any) -> Cache:
    if request.param == "memory":
        return lambda ds: ds.cache()
    return lambda ds: ds.cache(str(tmp_path / "cache"), limit="50MB")


@pytest.mark.parametrize("name", CHAINS)
def test_every_epoch_is_as_without_the_cache(name, cache):
    plain_ds, cached = CHAINS[name](uncached), CHAINS[name](cache)
    assert [elements(cached) for _ in range(3)] == [elements(plain_ds) for _ in range(3)]
    assert cached.cardinality == plain_ds.cardinality
    assert "cache of" in cached.explain()


@pytest.mark.parametrize("name", CHAINS)
def test_resuming_at_any_point_yields_the_same_rest(name, cache):
    ds = CHAINS[name](cache)
    for _ in range(2):  # while the cache fills, and once it is full
        whole, places = [], []
        iterator = iter(ds)
        places.append(json.dumps(iterator.position))
        for element in iterator:
            whole.append(plain(element))
            places.append(json.dumps(iterator.position))
        for done, place in enumerate(places):
            assert elements(ds.resume(place)) == whole[done:]


@pytest.mark.parametrize("make", [rows, units])
def test_functions_below_run_once_and_those_above_each_epoch(make, cache):
    below, above = [], []

    def count_below(x):
        below.append(int(x))
        return x

    def count_above(x):
        above.append(int(x))
        return x

    ds = cache(make().map(count_below, workers="thread")).map(count_above, workers="thread")
    first = elements(ds)
    looked_at = len(below) - len(first)
    assert looked_at <= 4  # to learn the schema
    assert elements(ds) == first
    assert len(below) == len(first) + looked_at
    assert len(above) == 2 * len(first)


@pytest.mark.parametrize("make", [rows, units])
def test_what_a_consumer_writes_to_does_not_change_the_cache(make, cache):
    def spoil(x):
        x += 100
        return x

    ds = cache(make().map(lambda x: np.full(3, x))).map(spoil, workers="thread")
    assert elements(ds) == elements(ds)


def test_random_numbers_below_a_cache_belong_to_the_row(cache):
    def noisy(x, rng):
        return x + rng.random()

    ds = cache(rows().map(noisy))
    first = elements(ds)
    assert elements(ds) == first
    assert sorted(elements(ds.shuffle(seed=5))) == sorted(first)


def test_a_cache_of_batches_is_refused_in_one_sentence(cache):
    with pytest.raises(InvalidInput, match=r"what comes out of batch\(4\)"):
        elements(cache(rows().batch(4)))
    with pytest.raises(InvalidInput, match="shuffle"):
        cache(rows().shuffle(seed=1)).explain()


REMOTE: dict[str, Callable[[], Dataset]] = {
    "lines": lambda: read_text("memory://contract/lines.txt"),
    "rows": lambda: read_numpy("memory://contract/rows.npy"),
}


@pytest.mark.parametrize("name", REMOTE)
def test_kept_bytes_change_neither_batches_nor_positions(name, tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe("/contract/lines.txt", "".join(f"{i}\n" for i in range(40)).encode())
    file = io.BytesIO()
    np.save(file, np.arange(40))
    store.pipe("/contract/rows.npy", file.getvalue())

    def chain(read: Dataset) -> Dataset:
        return read.shuffle(seed=4).shard(1, 2).batch(3).repeat(2)

    plain_ds, kept = chain(REMOTE[name]()), chain(REMOTE[name]().cache(tmp_path))
    whole, places = [], []
    iterator = iter(kept)
    places.append(json.dumps(iterator.position))
    for element in iterator:
        whole.append(plain(element))
        places.append(json.dumps(iterator.position))
    assert whole == elements(plain_ds) and list(tmp_path.glob("bytes-*/unit-*"))
    store.rm("/contract", recursive=True)  # from here on there are only the kept bytes
    for done, place in enumerate(places):
        assert elements(kept.resume(place)) == whole[done:]

"""Sharded chains decode straight into batches, and do so exactly as the general way would."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import simplejpeg

import penstock as ps
from penstock.dataset import Dataset
from penstock.engine import build
from penstock.engine.streams.rows import RowBatches
from tests.stand_ins import NumberRows


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(23):
        (folder / f"class{number % 3}").mkdir(exist_ok=True)
        pixels = rng.integers(0, 255, (40 + number, 50, 3), np.uint8)
        (folder / f"class{number % 3}" / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    return str(folder)


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chooses the way: straight into the batch buffer or through blocks; counts the streams of the first kind."""
    made: list[RowBatches] = []
    plain, straight = build.decodes_into_batches, build.RowBatches

    def counted(*args: Any, **named: Any) -> RowBatches:
        made.append(straight(*args, **named))
        return made[-1]

    def choose(yes: bool) -> list[RowBatches]:
        monkeypatch.setattr(build, "decodes_into_batches", plain if yes else lambda segment: False)
        monkeypatch.setattr(build, "RowBatches", counted)
        made.clear()
        return made

    return choose


def flat(batches: Any) -> list[tuple[Any, ...]]:
    return [tuple(np.asarray(part).tolist() for part in batch) for batch in batches]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_pictures_are_the_same_both_ways(pictures: str, directly: Any, rank: int, drop_last: bool) -> None:
    def chain() -> Dataset:  # made anew: every pass over a dataset is another epoch
        mixed = ps.read_images(pictures, size=(24, 24)).shuffle(seed=5).shard(rank, 3)
        return mixed.batch(3, drop_last=drop_last).repeat(2)

    made = directly(True)
    straight = flat(chain())
    assert made, "the direct way was taken"
    directly(False)
    assert flat(chain()) == straight and not made
    rows = len(range(rank, 23, 3))
    assert [len(batch[1]) for batch in straight] == (
        [3] * (rows // 3) + [rows % 3] * (not drop_last and rows % 3 > 0)
    ) * 2


@pytest.mark.parametrize("first_way", [False, True], ids=["from blocks", "from straight"])
def test_either_way_goes_on_where_the_other_stopped(directly: Any, first_way: bool) -> None:
    def chain() -> Dataset:
        return Dataset.of(NumberRows(61)).shuffle(seed=3).shard(1, 3).batch(4)

    directly(True)
    whole = [batch.tolist() for batch in chain()]
    for taken in range(len(whole) + 1):
        directly(first_way)
        with iter(chain()) as iterator:
            assert [next(iterator).tolist() for _ in range(taken)] == whole[:taken]
            place = json.loads(json.dumps(iterator.position))
        directly(not first_way)
        assert [batch.tolist() for batch in chain().resume(place)] == whole[taken:]


def test_ranks_that_change_agree_both_ways(directly: Any) -> None:
    def chain(rank: int, world: int) -> Dataset:
        return Dataset.of(NumberRows(97)).shuffle(seed=8).shard(rank, world).batch(5)

    found = []
    for way in (True, False):
        directly(way)
        seen, places = [], []
        for rank, taken in enumerate((1, 4, 2)):
            with iter(chain(rank, 3)) as iterator:
                seen += [v for _ in range(taken) for v in next(iterator).tolist()]
                places.append(iterator.position)
        for rank in range(2):
            seen += [v for batch in chain(rank, 2).resume(places) for v in batch.tolist()]
        assert sorted(seen) == list(range(97))
        found.append(len(seen))
    assert found == [97, 97]

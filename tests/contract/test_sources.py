"""The source contract: every public reader, on real files, through all that a chain may ask of it.

Read, split, shuffle, resume at any place, shard and merge, damage, skipping, a small budget. The table of readers is in
readers.py: a new reader is one line there.
"""

from __future__ import annotations

import json

import psutil
import pytest

import penstock as ps
from penstock.core.errors import BadData, DataError
from tests.contract.readers import READERS, Reader

ROWS = 37
DAMAGED = frozenset({5, 20})
SPARE = 150_000_000
"""Bytes above what the process has anyway: a few blocks of the readers that expect the largest ones."""

every = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
every_damaging = pytest.mark.parametrize("reader", [r for r in READERS if r.damages], ids=lambda reader: reader.name)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Whole files of a reader, written once for all tests."""
    made = {}

    def folder_of(reader: Reader):
        if reader.name not in made:
            made[reader.name] = tmp_path_factory.mktemp("sound")
            reader.write(made[reader.name], ROWS, ())
        return made[reader.name]

    return folder_of


@pytest.fixture(autouse=True)
def _own_index_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "indexes"))


def numbers(reader: Reader, elements) -> list[int]:
    return [reader.number(element) for element in elements]


def test_every_public_reader_is_in_the_table():
    readers = {name for name in ps.__all__ if name.startswith(("read_", "from_", "list_"))}
    on_a_cluster = {"from_ray"}  # tests/integration/test_on_ray.py
    assert readers == {reader.public for reader in READERS} | on_a_cluster


@every
def test_rows_come_whole_and_in_order_each_time(reader, sound):
    ds = reader.read(sound(reader))
    assert numbers(reader, ds) == list(range(ROWS))
    assert numbers(reader, ds) == list(range(ROWS))
    rows = ds.node.step.source.num_rows()
    assert rows in (None, ROWS)


@every
def test_a_shuffle_has_the_same_rows_in_an_order_that_the_seed_decides(reader, sound):
    folder = sound(reader)
    first, again = (numbers(reader, reader.read(folder).shuffle(seed=3)) for _ in range(2))
    assert first == again and first != list(range(ROWS)) and sorted(first) == list(range(ROWS))


@every
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_a_pass_goes_on_where_it_stopped(reader, shuffled, sound):
    def chain():
        ds = reader.read(sound(reader))
        return ds.shuffle(seed=1) if shuffled else ds

    iterator = iter(chain())
    whole, places = [], [json.dumps(iterator.position)]
    for element in iterator:
        whole.append(reader.number(element))
        places.append(json.dumps(iterator.position))
    for done in (0, 1, 17, ROWS - 1, ROWS):
        assert numbers(reader, chain().resume(places[done])) == whole[done:]


@every
def test_ranks_share_the_rows(reader, sound):
    parts = [numbers(reader, reader.read(sound(reader)).shuffle(seed=2).shard(rank, 3)) for rank in range(3)]
    assert sorted(number for part in parts for number in part) == list(range(ROWS))
    assert all(parts)


@every
def test_two_sides_of_a_split_share_no_row_and_have_all(reader, sound):
    train, test = reader.read(sound(reader)).split(0.8, seed=3)
    sides = [numbers(reader, train), numbers(reader, test)]
    assert sorted(sides[0] + sides[1]) == list(range(ROWS))
    assert len(sides[0]) > len(sides[1]) > 0
    shuffled = reader.read(sound(reader)).shuffle(seed=5).split(0.8, seed=3)
    assert [sorted(numbers(reader, side)) for side in shuffled] == [sorted(side) for side in sides]


@every
def test_little_memory_is_enough(reader, sound, newly_held):
    process = psutil.Process()
    with ps.limit(process.memory_info().rss + SPARE, reserve="1MB"):
        ds = reader.read(sound(reader)).shuffle(seed=1)
        assert sorted(numbers(reader, ds)) == list(range(ROWS))
    assert newly_held() == {}


@every_damaging
def test_damage_is_named_or_skipped(reader, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    reader.write(folder, ROWS, DAMAGED)
    left = [row for row in range(ROWS) if row not in DAMAGED]
    with pytest.raises(DataError) as found:
        numbers(reader, reader.read(folder))
    assert isinstance(found.value, BadData) and len(str(found.value)) < 500
    ds = reader.read(folder, on_error="skip")
    assert numbers(reader, ds) == left
    source = ds.node.step.source
    assert (source.on_error.count, source.on_error.seen) == (len(DAMAGED), len(left))
    assert sorted(numbers(reader, reader.read(folder, on_error="skip").shuffle(seed=1))) == left
    parts = [numbers(reader, reader.read(folder, on_error="skip").shard(rank, 2)) for rank in range(2)]
    assert sorted(number for part in parts for number in part) == left

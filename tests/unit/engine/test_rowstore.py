"""Exact shuffles through a row store: uniform, shared, resumable, refused by numbers, and checked when read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.errors import BadData, DiskTooSmall, InvalidInput, PositionError
from penstock.core.events import events
from penstock.dataset import Dataset
from penstock.engine.rowstore import fill as filling
from penstock.engine.rowstore import source as stored
from penstock.engine.rowstore import store
from penstock.engine.rowstore import wait as waiting
from penstock.engine.streams import window_shuffle
from tests.stand_ins import NumberUnits


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Blocks of 200 numbers, runs of 500, and a cache folder of the test's own."""
    monkeypatch.setattr(stored, "BLOCK_NBYTES", 1_600)
    monkeypatch.setattr(filling, "_RUN_LEAST", 4_000)
    monkeypatch.setattr(filling, "_RUN_MOST", 4_000)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def numbers(count: int = 3_000, unit: int = 100) -> NumberUnits:
    return NumberUnits((unit,) * (count // unit), 40)


def values(ds: Dataset, epoch: int = 0) -> list[int]:
    return [int(v) for batch in ds.batch(50).at_epoch(epoch) for v in batch]


def test_all_rows_once_in_another_order_each_epoch():
    ds = Dataset.of(numbers()).shuffle(seed=1, exact=True)
    epochs = [values(ds), values(ds, epoch=1)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(3_000))] * 2
    assert epochs[0] != epochs[1]
    assert values(Dataset.of(numbers()).shuffle(seed=1, exact=True)) == epochs[0]
    assert values(Dataset.of(numbers()).shuffle(seed=2, exact=True)) != epochs[0]
    for epoch in epochs:  # places are not tied to numbers, nor neighbours to neighbours
        assert abs(np.corrcoef(epoch, range(3_000))[0, 1]) < 0.08
        assert (np.abs(np.diff(epoch)) <= 10).mean() < 0.03


def test_the_order_is_uniform():
    """Where a row comes, over many datasets of other row numbers: a chi-square test over ten parts of the epoch."""
    counts = np.zeros((10, 10))
    for seed in range(40):
        epoch = np.array(values(Dataset.of(numbers(1_000)).shuffle(seed=seed, exact=True)))
        np.add.at(counts, (epoch // 100, np.arange(1_000) // 100), 1)
    expected = counts.sum() / 100
    assert ((counts - expected) ** 2 / expected).sum() < 160  # 81 degrees of freedom: beyond 160 once in 10^6


def test_the_store_is_filled_once_and_shared():
    first, second = numbers(), numbers()
    ds = Dataset.of(first).shuffle(seed=1, exact=True)
    values(ds)
    assert len(first.opened) == first.num_units()
    values(ds)
    assert values(Dataset.of(second).shuffle(seed=5, exact=True))
    assert len(first.opened) == first.num_units() and second.opened == []


class Fails(NumberUnits):
    """Gives up in the middle, as a process that is killed would."""

    alive = False

    def open(self, unit, part=0, *given):
        if unit == 17 and not self.alive:
            raise RuntimeError("killed")
        return super().open(unit, part, *given)

    def fingerprint(self):
        return "the same data"


def test_a_fill_that_was_killed_goes_on(tmp_path):
    whole = values(Dataset.of(numbers()).shuffle(seed=1, exact=True))
    source = Fails((100,) * 30, 40)
    ds = Dataset.of(source).shuffle(seed=1, exact=True, folder=tmp_path / "rows")
    with pytest.raises(RuntimeError, match="killed"):
        values(ds)
    (entry,) = [path for path in (tmp_path / "rows").iterdir() if path.is_dir()]
    with open(entry / "data", "ab") as file:
        file.write(b"a run without a line")
    source.alive, before = True, len(source.opened)
    assert values(ds) == whole
    again = {unit for unit, _ in source.opened[before:]}
    assert min(again) >= 10  # what was in place is not read again
    assert (entry / "complete").read_bytes() != b""


def test_the_size_of_a_run_changes_nothing(monkeypatch, tmp_path):
    found = []
    for nbytes in (1_000, 4_000, 100_000):
        monkeypatch.setattr(filling, "_RUN_LEAST", nbytes)
        monkeypatch.setattr(filling, "_RUN_MOST", nbytes)
        ds = Dataset.of(numbers()).shuffle(seed=1, exact=True, folder=tmp_path / str(nbytes))
        found.append(values(ds))
    assert found[0] == found[1] == found[2]


def test_resume_at_any_batch_and_other_worlds():
    ds = Dataset.of(numbers(1_000)).shuffle(seed=3, exact=True).batch(64)
    whole, places = [], []
    with iter(ds) as iterator:
        places.append(json.dumps(iterator.position))
        for batch in iterator:
            whole.append(batch.tolist())
            places.append(json.dumps(iterator.position))
    assert max(map(len, places)) < 1_000
    for done in range(0, len(places), 3):
        assert [b.tolist() for b in ds.resume(places[done])] == whole[done:]
    seen, reached = [], []
    for rank in range(3):
        with iter(Dataset.of(numbers(1_000)).shuffle(seed=3, exact=True).shard(rank, 3).batch(10)) as iterator:
            seen += [v for _ in range(rank + 2) for v in next(iterator).tolist()]
            reached.append(iterator.position)
    for rank in range(2):
        rest = Dataset.of(numbers(1_000)).shuffle(seed=3, exact=True).shard(rank, 2).batch(10).resume(reached)
        seen += [v for batch in rest for v in batch.tolist()]
    assert sorted(seen) == list(range(1_000))


def test_a_position_of_another_copy_is_refused(monkeypatch, tmp_path):
    ds = Dataset.of(numbers()).shuffle(seed=1, exact=True)
    with iter(ds.batch(10)) as iterator:
        for _ in range(150):
            next(iterator)
        place = iterator.position
    monkeypatch.setattr(stored, "BLOCK_NBYTES", 3_200)
    with pytest.raises(PositionError, match="units"):
        list(ds.batch(10).resume(place))


def test_text_rows_are_kept_too(tmp_path):
    lines = [f"line {i} " + "x" * (i % 40) for i in range(2_000)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    ds = ps.read_text(tmp_path / "t.txt").shuffle(seed=1, exact=True)
    found = [text for batch in ds.batch(100) for text in batch["text"]]
    assert sorted(found) == sorted(lines) and found != lines


def test_a_disk_that_is_too_small_is_refused_by_numbers(tmp_path, monkeypatch):
    ds = Dataset.of(numbers()).cache(tmp_path / "c", limit="60KB").shuffle(seed=1, exact=True)
    with pytest.raises(DiskTooSmall, match="KB") as caught:
        values(ds)
    assert caught.value.needed > caught.value.free
    assert len(str(caught.value)) < 500
    free = store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: free._replace(free=1_000))
    with pytest.raises(DiskTooSmall):
        values(Dataset.of(numbers()).shuffle(seed=1, exact=True, folder=tmp_path / "d"))
    assert [p.name for p in (tmp_path / "d").rglob("data")] == []


def test_a_cache_in_a_folder_is_shuffled_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(window_shuffle, "WINDOW_NBYTES", 3_000)  # as if the data were larger than a window

    def cached(factor):
        source = numbers()
        return source, Dataset.of(source).map(lambda v: v * factor).cache(tmp_path / "c").shuffle(seed=1)

    source, ds = cached(2)
    assert ds.shuffle_quality().exact
    assert sorted(values(ds)) == list(range(0, 6_000, 2))
    opened = len(source.opened)
    assert sorted(values(ds, epoch=1)) == list(range(0, 6_000, 2)) and len(source.opened) == opened
    assert not list((tmp_path / "c").rglob("unit-*"))  # kept once, as rows
    again, same = cached(2)
    assert values(same) == values(ds) and again.opened == []
    _, other = cached(3)
    assert sorted(values(other)) == list(range(0, 9_000, 3))  # another function, other rows


def test_damage_on_disk_is_found(tmp_path):
    ds = Dataset.of(numbers()).shuffle(seed=1, exact=True, folder=tmp_path / "rows")
    values(ds)
    (data,) = (tmp_path / "rows").rglob("data")
    text = bytearray(data.read_bytes())
    text[len(text) // 2] ^= 1
    data.write_bytes(text)
    with pytest.raises(BadData, match="row store is damaged"):
        values(ds)


def test_few_large_row_groups_go_through_a_store_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "BLOCK_NBYTES", 8_000_000)
    monkeypatch.setattr(filling, "_RUN_MOST", 64_000_000)
    rows = 800_000  # more than two windows
    table = pa.table(
        {f"x{i}": np.random.default_rng(i).normal(size=rows) for i in range(10)} | {"row": np.arange(rows)}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows // 8)
    ds = ps.read_parquet(tmp_path / "t.parquet", columns=["row", "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"])
    assert ds.shuffle(seed=1).shuffle_quality().exact
    assert f"row store in {tmp_path / 'cache' / 'rows'}" in ds.shuffle(seed=1).explain()
    assert not ds.shuffle(seed=1, window="10MB").shuffle_quality().exact
    told = len([event for event in events.recent if event.kind == "shuffle.mixes"])
    ds.shuffle(seed=1).map(lambda sample: sample).peek()
    assert len([event for event in events.recent if event.kind == "shuffle.mixes"]) == told
    assert not os.path.exists(tmp_path / "cache" / "rows")  # one element is not worth a copy of the data
    batches = [batch["row"] for batch in ds.shuffle(seed=1).batch(256)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    assert np.mean([len(np.unique(b * 100 // rows)) for b in batches[:-1]]) / 92.37 > 0.97


def test_arguments_that_do_not_go_together():
    with pytest.raises(InvalidInput, match="window"):
        Dataset.of(numbers()).shuffle(seed=1, window=10, exact=True)
    with pytest.raises(InvalidInput, match="folder"):
        Dataset.of(numbers()).shuffle(seed=1, folder=Path("x"))


def stores(cache: Path) -> list[str]:
    """Labels of the stores in a cache folder."""
    found = (cache / "rows").glob("*/about.json")
    return sorted(json.loads(path.read_text())["label"] for path in found)


class Named(NumberUnits):
    """Numbers of a dataset with a name of its own."""

    def __init__(self, name: str) -> None:
        super().__init__((100,) * 30, 40)
        self.label = name

    def fingerprint(self):
        return self.label


def test_the_least_recently_used_store_makes_room(monkeypatch, tmp_path):
    """Rows of 24 KB and an index of 150 KB each: two stores fit, and the one that was used again stays."""
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "400KB")
    monkeypatch.setattr(filling, "_KEPT_FREE_NBYTES", 0)
    monkeypatch.setattr(filling, "_RUN_MOST", 40_000)
    monkeypatch.setattr(filling, "_RUN_LEAST", 40_000)
    for name in ("first", "second", "first", "third"):
        assert sorted(values(Dataset.of(Named(name)).shuffle(seed=1, exact=True))) == list(range(3_000))
        for about in (tmp_path / "cache" / "rows").glob("*/about.json"):  # an hour passes
            status = about.stat()
            os.utime(about, (status.st_atime - 3600, status.st_mtime - 3600))
    assert stores(tmp_path / "cache") == ["first", "third"]
    with iter(Dataset.of(Named("first")).shuffle(seed=1, exact=True).batch(10)) as reading:
        next(reading)
        values(Dataset.of(Named("fourth")).shuffle(seed=1, exact=True))
        assert stores(tmp_path / "cache") == ["first", "fourth"]  # what is read stays
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "10KB")
    with pytest.raises(DiskTooSmall, match="10 KB|PENSTOCK_CACHE"):
        values(Dataset.of(Named("fifth")).shuffle(seed=1, exact=True))


def test_all_stores_together_keep_below_their_share_of_the_disk(monkeypatch, tmp_path):
    free = store.shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: free)
    folder = store.CacheFolder(str(tmp_path / "rows"), None)
    assert store._limit(folder, 0.5) == 500_000
    (tmp_path / "rows" / "other").mkdir()
    (tmp_path / "rows" / "other" / "data").write_bytes(bytes(200_000))
    assert store._limit(folder, 0.5) == 600_000  # half of what is free and what stores have taken


def test_the_store_of_a_database_does_not_outlive_a_killed_process(tmp_path):
    left = tmp_path / "cache" / "rows" / "once-key-1234-5678"
    left.mkdir(parents=True)
    (left / "data").write_bytes(bytes(100))
    source = numbers()
    source.changes_unseen = True
    ds = Dataset.of(source).shuffle(seed=1, exact=True)
    whole = values(ds)
    assert not left.exists()
    (own,) = (tmp_path / "cache" / "rows").glob("once-*")
    store.CacheFolder(str(tmp_path / "cache" / "rows"), None).remove_abandoned("once-")
    assert own.exists() and values(ds) == whole and len(source.opened) == source.num_units()


def test_a_long_wait_is_told_with_what_is_left(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_FIRST_LINE_S", 0.0)
    values(Dataset.of(numbers()).shuffle(seed=1, exact=True))
    (line,) = [record.getMessage() for record in caplog.records if "random order" in record.getMessage()]
    assert "of about" in line and "s left" in line and "The first batch waits" in line
    written = [event.values for event in events.recent if event.kind == "rowstore.written"]
    assert written[-1]["whole_nbytes"] >= written[-1]["nbytes"] > 0

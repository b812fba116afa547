"""Both sides together are all rows, none twice, the same ones each time."""

from __future__ import annotations

import pickle

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.errors import InvalidInput
from penstock.core.source import RowSource, UnitSource
from penstock.dataset import Dataset
from penstock.order.split import Rule, split
from penstock.sources.csv import plan as csv_plan
from penstock.train.inspect import source_of


@given(total=st.integers(0, 3000), share=st.floats(0.01, 0.9), seed=st.integers(0, 1 << 40))
def test_row_numbers_are_shared_out(total, share, seed):
    rule = Rule.of(share, seed)
    train = rule.rows(np.arange(rule.count(total, "train")), total, "train")
    val = rule.rows(np.arange(rule.count(total, "val")), total, "val")
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(total))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(val) > 0), "both in the order of the data"


def test_the_share_is_kept():
    rule = Rule.of(0.15)
    assert rule.count(10_000, "val") == 1500


def test_data_with_a_period_does_not_meet_the_same_place():
    rule = Rule.of(0.1)
    kept = rule.rows(np.arange(1000), 10_000, "val")
    counts = np.bincount(kept % 10, minlength=10)
    assert counts.min() > 50


def rows_of(ds: Dataset) -> list[int]:
    return [int(row["n"]) for row in ds]


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("n\n" + "\n".join(map(str, range(5000))) + "\n")
    return source_of(ps.read_csv(str(path)))


@pytest.fixture
def arrays():
    return source_of(ps.from_tensor_slices({"n": np.arange(777)}))


@pytest.mark.parametrize("name", ["csv", "arrays"])
def test_sources_are_shared_out(name, request):
    source = request.getfixturevalue(name)
    sides = [split(source, 0.2, side, 5) for side in ("train", "val")]
    assert all(isinstance(side, RowSource if name == "arrays" else UnitSource) for side in sides)
    found = [rows_of(Dataset.of(side)) for side in sides]
    everything = rows_of(Dataset.of(source))
    assert sorted(found[0] + found[1]) == sorted(everything)
    assert len(found[1]) == pytest.approx(0.2 * len(everything), rel=0.02)
    assert rows_of(Dataset.of(split(source, 0.2, "val", 5))) == found[1]
    assert rows_of(Dataset.of(split(source, 0.2, "val", 6))) != found[1]
    shuffled = rows_of(Dataset.of(sides[0]).shuffle(seed=1))
    assert sorted(shuffled) == sorted(found[0]) and shuffled != found[0]


def test_a_shuffled_side_resumes(csv):
    ds = Dataset.of(split(csv, 0.1, "train")).shuffle(seed=2).batch(64)
    iterator = iter(ds)
    for _ in range(9):
        next(iterator)
    place = iterator.position
    rest = [batch["n"].tolist() for batch in iterator]
    again = Dataset.of(split(csv, 0.1, "train")).shuffle(seed=2).batch(64).resume(place)
    assert [batch["n"].tolist() for batch in again] == rest


def test_a_small_rest_is_shared_out_too():
    held = [Rule.of(0.2, seed).count(4, "val") for seed in range(200)]
    assert sum(held) / 800 == pytest.approx(0.2, abs=0.05), "also where there are fewer rows than a group has"


@pytest.fixture
def quoted(tmp_path, monkeypatch):
    """Text in small pieces, with line ends inside of quotes, in two files."""
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 16_000)
    monkeypatch.setattr("penstock.order.split.MANY_PIECES", 20)
    for name, first in (("a", 0), ("b", 3000)):
        rows = "".join(f'{n},"line {n}\nand another, of row {n}"\n' for n in range(first, first + 3000))
        (tmp_path / f"{name}.csv").write_text("n,text\n" + rows)
    return str(tmp_path / "*.csv")


def test_text_is_dealt_out_in_pieces(quoted):
    train, test = ps.read_csv(quoted).split(0.9, seed=4)
    assert train.node.step.source.num_pieces() > 9 * test.node.step.source.num_pieces() // 2 > 0
    sides = [rows_of(train), rows_of(test)]
    assert sorted(sides[0] + sides[1]) == list(range(6000))
    assert len(sides[1]) == pytest.approx(600, rel=0.3)
    assert [sorted(rows_of(side.shuffle(seed=1))) for side in (train, test)] == sides
    explained = train.shuffle(seed=1).explain()
    assert "row store" not in explained, "a side is shuffled in scattered pieces, as the whole is"


def test_the_split_does_not_depend_on_memory_or_process(quoted):
    here = rows_of(ps.read_csv(quoted).split(0.9, seed=4)[1])
    with ps.limit(psutil.Process().memory_info().rss + 150_000_000, reserve="1MB"):
        assert rows_of(ps.read_csv(quoted).split(0.9, seed=4)[1]) == here
    test = ps.read_csv(quoted).split(0.9, seed=4)[1]
    assert rows_of(pickle.loads(pickle.dumps(test))) == here


def test_a_side_in_pieces_resumes(quoted):
    ds = ps.read_csv(quoted).split(0.9)[0].shuffle(seed=2).batch(64)
    iterator = iter(ds)
    for _ in range(9):
        next(iterator)
    place = iterator.position
    rest = [batch["n"].tolist() for batch in iterator]
    again = ps.read_csv(quoted).split(0.9)[0].shuffle(seed=2).batch(64).resume(place)
    assert [batch["n"].tolist() for batch in again] == rest


def test_both_sides_keep_their_steps(arrays):
    train, test = Dataset.of(arrays).map(lambda n: n["n"] * 2).batch(10).split(0.5)
    found = [sorted(int(n) for batch in side for n in batch) for side in (train, test)]
    assert sorted(found[0] + found[1]) == list(range(0, 2 * 777, 2))


@pytest.mark.parametrize("step", ["take", "skip", "repeat"])
def test_steps_that_count_rows_come_after(arrays, step):
    with pytest.raises(InvalidInput, match=rf"split\(\) cannot follow {step}\(\): .* Call split\(\) before it"):
        getattr(Dataset.of(arrays), step)(5).split(0.5)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 80, "0.8"])
def test_a_fraction_lies_between_nothing_and_all(arrays, fraction):
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        Dataset.of(arrays).split(fraction)


def test_no_validation_leaves_the_source_alone(csv):
    assert split(csv, 0, "train") is csv

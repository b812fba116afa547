"""Both sides together are all rows, none twice, the same ones each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.source import RowSource, UnitSource
from penstock.dataset import Dataset
from penstock.train.look import source_of
from penstock.train.split import Rule, split


@given(total=st.integers(0, 3000), share=st.floats(0.01, 0.9), seed=st.integers(0, 1 << 40))
def test_row_numbers_are_shared_out(total, share, seed):
    rule = Rule.of(share, seed)
    train = rule.rows(np.arange(rule.count(total, "train")), total, "train")
    val = rule.rows(np.arange(rule.count(total, "val")), total, "val")
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(total))


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


def test_no_validation_leaves_the_source_alone(csv):
    assert split(csv, 0, "train") is csv

"""A batch cut into parts is the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidInput
from penstock.guard.recovery.microbatch import count_rows, part_sizes, split


@given(rows=st.integers(1, 400), micro=st.integers(1, 500))
def test_parts_are_few_near_equal_and_whole(rows, micro):
    sizes = part_sizes(rows, micro)
    assert sum(sizes) == rows
    assert max(sizes) <= micro
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-rows // micro)


@given(rows=st.integers(1, 60), micro=st.integers(1, 70))
def test_split_gives_every_row_once_in_order(rows, micro):
    batch = ({"a": np.arange(rows), "b": np.arange(rows * 3).reshape(rows, 3)}, np.arange(rows) * 2, None)
    parts = list(split(batch, micro))
    assert np.array_equal(np.concatenate([p.data[0]["a"] for p in parts]), batch[0]["a"])
    assert np.array_equal(np.concatenate([p.data[0]["b"] for p in parts]), batch[0]["b"])
    assert all(p.data[2] is None for p in parts)
    assert sum(p.share for p in parts) == pytest.approx(1)
    assert [p.start for p in parts] == list(np.cumsum([0] + [p.rows for p in parts[:-1]]))


def test_rows_that_were_counted_before_are_not_counted_again():
    batch = {"x": np.zeros((10, 4)), "none": None}
    counted, told = (list(split(batch, 4, **rows)) for rows in ({}, {"rows": 10}))
    assert [(p.start, p.rows, p.share) for p in counted] == [(p.start, p.rows, p.share) for p in told]
    assert [p.rows for p in told] == [4, 3, 3] and all(p.data["none"] is None for p in told)


def test_parts_are_views():
    x = np.zeros((10, 4))
    assert all(np.shares_memory(p.data, x) for p in split(x, 3))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((np.zeros(3), np.zeros(4)), "4 rows where others have 3"),
        (np.zeros(()), "scalar"),
        (([1, 2],), "list"),
        (np.zeros((0, 2)), "no rows"),
    ],
)
def test_bad_batches_are_refused(batch, says):
    with pytest.raises(InvalidInput, match=says):
        count_rows(batch)

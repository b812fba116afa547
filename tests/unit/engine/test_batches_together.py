"""Small batches that were made together are taken together: the same rows, and positions in between."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.dataset import Dataset
from tests.stand_ins import NumberUnits


def numbers():
    return Dataset.of(NumberUnits((40, 0, 25, 35))).shuffle(seed=3).batch(7)


def rows_in_groups(stream):
    found, groups = [], []
    while True:
        try:
            together = stream.next_together()
            rows, count = (next(stream), 1) if together is None else together
        except StopIteration:
            return found, groups
        found += np.asarray(rows).tolist()
        groups.append(count)


def test_groups_hold_the_rows_of_their_batches():
    found, groups = rows_in_groups(iter(numbers().at_epoch(0)))
    assert found == [int(v) for batch in numbers().at_epoch(0) for v in batch]
    assert sum(groups) == 15 and groups[-1] == 1, "100 rows are 14 batches of 7 and one of 2, which stands alone"
    assert max(groups) > 1


@pytest.mark.parametrize("singly", range(0, 15, 3))
def test_a_position_after_single_batches_and_a_group_leads_to_the_rest(singly):
    with iter(numbers().at_epoch(0)) as stream:
        for _ in range(singly):
            next(stream)
        stream.next_together()
        place = stream.position
        rest, _ = rows_in_groups(stream)
    assert [int(v) for batch in numbers().resume(place) for v in batch] == rest


def test_batches_of_a_function_stand_alone():
    doubled = numbers().map(lambda v: v * 2)
    with iter(doubled.at_epoch(0)) as stream:
        assert stream.next_together() is None
        assert len(next(stream)) == 7

"""Functions over blocks: where a row came from is found only for an error."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.core.block import Block
from penstock.core.errors import MapError
from penstock.engine.streams.transform import Fused, keep_batch
from penstock.native.arrays import keep_idle
from penstock.plan.steps import Filter, MapBatches


def block(asked: list[int]) -> Block:
    def origin(row: int) -> str:
        asked.append(row)  # in real sources this may read a whole stretch of a file again
        return f"row {row} of the file"

    return Block({"value": np.arange(10)}, "value", origin)


def test_a_function_that_works_never_asks_where_rows_came_from():
    asked: list[int] = []
    made = Fused((MapBatches(lambda values: values * 2),))(block(asked), (0,))
    assert made.columns["value"].tolist() == list(range(0, 20, 2))
    assert keep_batch(Filter(lambda values: len(values) == 10), block(asked), (0,))
    assert asked == []


def test_a_function_that_fails_is_told_with_the_place():
    asked: list[int] = []
    with pytest.raises(MapError, match="a block that starts at row 0 of the file"):
        Fused((MapBatches(lambda values: values / "x"),))(block(asked), (0,))
    assert asked == [0]


def test_results_of_functions_lie_in_memory_that_is_used_again():
    pictures = np.zeros((64, 100, 100, 3), np.uint8)
    ds = ps.from_tensor_slices(pictures).batch(4).map(lambda x: x.astype("float32") / 255)
    places = [batch.__array_interface__["data"][0] for batch in ds]
    assert len(places) == 16
    assert len(set(places)) < 16
    assert all(place % 64 == 0 for place in places)
    assert keep_idle(0) == 0  # given up with the run

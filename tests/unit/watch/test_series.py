"""Buckets: bounded however long the run, and no peak or total is lost by merging."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.watch.series import MOST_HOLDERS, MOST_SERIES, REST, Grid


def test_numbers_of_one_bucket():
    grid = Grid()
    for value in (3.0, 1.0, 5.0, 2.0):
        grid.add(0.1, "loss", value)
    bucket = grid.numbers["loss"][0]
    assert (bucket.low, bucket.high, bucket.mean, bucket.last, bucket.count) == (1.0, 5.0, 2.75, 2.0, 4)


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(-1e6, 1e6)), min_size=1, max_size=200), st.integers(2, 40))
def test_merging_loses_nothing(values, most):
    grid = Grid(most_buckets=most)
    for at_s, value in values:
        grid.add(at_s, "x", value)
    buckets = grid.numbers["x"]
    assert len(buckets) <= most and max(buckets) < most and grid.last_index == max(buckets)
    assert sum(bucket.count for bucket in buckets.values()) == len(values)
    assert min(bucket.low for bucket in buckets.values()) == min(value for _, value in values)
    assert max(bucket.high for bucket in buckets.values()) == max(value for _, value in values)
    for index, bucket in buckets.items():
        inside = [v for at_s, v in values if int(at_s / grid.width_s) == index]
        assert bucket.total == pytest.approx(sum(inside), abs=1e-3) and bucket.count == len(inside)


def test_the_grid_depends_on_times_alone():
    """Whoever reads the file sees the same grid, in whatever order series were first seen."""
    times = sorted(random.Random(0).uniform(0, 50_000) for _ in range(3000))
    one, other = Grid(), Grid()
    for at_s in times:
        one.add(at_s, "a", 1.0)
        one.add(at_s, "b", 1.0)
    for at_s in times:
        other.add(at_s, "b", 1.0)
    assert (one.level, one.width_s, one.last_index) == (other.level, other.width_s, other.last_index)


def test_a_peak_is_never_averaged_away():
    grid = Grid(most_buckets=8)
    for second in range(10_000):
        peak = second == 4321
        grid.add_memory(second, 900 if peak else 100, 1000, {"model": 800 if peak else 0, "rest": 100})
    assert max(sample.used for sample in grid.memory.values()) == 900
    highest = max(grid.memory.values(), key=lambda sample: sample.used)
    assert highest.holders == {"model": 800, "rest": 100}
    assert len(grid.memory) <= 8


def test_nan_leaves_a_gap_and_is_counted():
    grid = Grid()
    for value in (1.0, float("nan"), float("inf")):
        grid.add(0.0, "loss", value)
    assert grid.numbers["loss"][0].count == 1 and grid.not_finite == {"loss": 2}


def test_names_without_end_are_bounded():
    grid = Grid()
    for number in range(1000):
        grid.add(0.0, f"metric {number}", 1.0)
        grid.add_memory(float(number), 1, 1, {f"holder {number}": 1})
        grid.add(0.0, f"bad {number}", float("nan"))
    assert len(grid.numbers) == MOST_SERIES and len(grid.not_finite) <= MOST_SERIES
    assert len(grid.holders) <= MOST_HOLDERS + 1 and grid.holders[REST] == 1


def test_a_jump_of_the_clock_is_survived():
    grid = Grid()
    grid.add(1.0, "x", 1.0)
    grid.add(1e12, "x", 2.0)
    assert sum(bucket.count for bucket in grid.numbers["x"].values()) == 2

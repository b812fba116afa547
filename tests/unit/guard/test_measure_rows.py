"""Small parts are measured before a large one is tried again: few tries, and none that costs much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import OutOfMemory
from penstock.guard.forecast.peak import held_nbytes
from penstock.guard.recovery.free_memory import release
from penstock.guard.recovery.ladder import (
    Allowed,
    Failure,
    Line,
    after_failure,
    foreseen,
    larger_to_measure,
    learn,
    sizes_to_measure,
    start,
)
from penstock.guard.recovery.measure_rows import measure_rows
from penstock.guard.recovery.step import Control
from penstock.memory.limits import limit
from tests.stand_ins import fresh_pages

ROW = 400_000
MB = 10**6


class Stepper:
    """Holds real memory in proportion to its rows, and has so much room beside what was used when it was made."""

    measurable, waits_inside = True, False
    phase = "backward"
    weight: float | None = 1.0

    def __init__(self, room: int, fixed: int = 0) -> None:
        self.room, self.fixed = room, fixed
        self.tried: list[int] = []
        self.applied = 0

    def begin(self, parts):
        self.kept = None

    def part(self, part):
        self.tried.append(part.rows)
        if self.fixed + part.rows * ROW > self.room:
            raise MemoryError(f"Unable to allocate {part.rows * ROW} bytes")
        if self.kept is None:
            self.kept = (
                fresh_pages(self.fixed) if self.fixed else b""
            )  # as gradients: made by the first part, there for the others
        fresh_pages(part.rows * ROW)

    def drop(self):
        self.kept = None

    def prepare(self):
        pass

    def apply(self):
        self.applied += 1
        self.kept = None

    def free(self):
        pass

    def lean(self):
        return False

    def holds(self):
        return {"parameters": 0}


@settings(deadline=None)
@given(
    batch=st.integers(32, 100_000),
    row=st.integers(1_000, 50 * MB),
    base=st.integers(0, 10**10),
    share=st.floats(0.001, 1.2),
)
def test_after_measuring_the_first_size_tried_fits(batch, row, base, share):
    """The line is exact here: what is tried next fits and is no less than what the margin leaves."""
    free = int(batch * row * share) + 2 * row
    failure = Failure("forward", batch)
    ladder = start(batch)
    small, large = sizes_to_measure(ladder, failure)
    assert 0 < small < large and 5 * small <= max(batch / 12, 10)
    used = base
    ladder = learn(ladder, (small, small * row), (large, large * row), used=used, free=free)
    ladder, decision = after_failure(ladder, failure, Allowed())
    assert decision.rung == "smaller" and decision.micro < batch
    fits = max(large, int((ladder.limit * 0.97 - base) / row))
    if fits < batch * 0.9 and batch * row > free:
        assert decision.micro == fits


def test_nothing_is_measured_where_something_is_known():
    big = Failure("forward", 256)
    assert sizes_to_measure(start(256), big) == (4, 8)
    assert not sizes_to_measure(start(256, limit=10**9, line=Line(0, 1)), big)
    assert not sizes_to_measure(start(16), Failure("forward", 16))
    assert not sizes_to_measure(start(256), Failure("apply", 256))


def test_a_line_that_was_wrong_twice_is_not_believed():
    ladder = learn(start(8192), (128, 128 * MB), (256, 256 * MB), used=0, free=4000 * MB)
    sizes = []
    for _ in range(4):
        ladder, decision = after_failure(ladder, Failure("forward", ladder.micro), Allowed())
        sizes.append(decision.micro)
    assert sizes[0] == 3880 and sizes[3] <= sizes[1] / 3


def test_near_the_limit_the_part_that_was_measured_is_the_next_size():
    ladder = learn(start(8192), (128, 290 * MB), (256, 300 * MB), used=700 * MB, free=302 * MB)
    ladder, decision = after_failure(ladder, Failure("forward", 8192), Allowed())
    assert decision.micro == 256  # the margin of the limit leaves the line no row, but these rows have just fitted


def test_what_is_measured_is_what_parts_really_take():
    stepper = Stepper(room=10**12, fixed=30 * MB)
    release()  # as after a failed step: what malloc keeps free would be filled unseen
    found = measure_rows(stepper, np.zeros((256, 2)), (16, 32))
    assert stepper.tried == [32, 16, 32] and stepper.kept is None
    per_row = (found.large[1] - found.small[1]) / 16
    assert per_row == pytest.approx(ROW, rel=0.25)
    assert found.small[1] == pytest.approx(30 * MB + 16 * ROW, rel=0.15)


def test_a_batch_that_does_not_fit_is_split_at_the_second_try():
    room = 150 * MB
    stepper, control = Stepper(room, fixed=30 * MB), Control("test")
    release()  # what earlier tests left would be let go after the first failure, and be counted as free
    with limit(held_nbytes() + room):
        parts = control.run(stepper, np.zeros((1024, 2)))
    assert stepper.applied == 1
    assert stepper.tried[:4] == [1024, 32, 16, 32]
    assert len(stepper.tried) == 4 + parts <= 4 + 6, stepper.tried  # 300 rows fit, and parts are near equal


def test_where_not_even_a_small_part_fits_the_end_comes_soon():
    stepper, control = Stepper(room=ROW // 2), Control("test")
    with limit(held_nbytes() + 200 * MB), pytest.raises(OutOfMemory, match="1 sample does not fit"):
        control.run(stepper, np.zeros((8192, 2)))
    assert stepper.tried == [8192, 256, 8, 4, 2, 1]


def test_larger_parts_are_measured_where_the_smallest_do_not_tell_enough():
    free = 80_000_000
    ladder = foreseen(start(8192), (128, 5_500_000), (256, 6_600_000), used=0, free=free)
    assert larger_to_measure(ladder, (128, 256), free, 8192) == (512, 1024)
    assert larger_to_measure(ladder, (512, 1024), free, 8192) == (1024, 2048)
    assert larger_to_measure(ladder, (1024, 2048), free, 8192) == ()  # a quarter of the pass
    assert larger_to_measure(ladder, (128, 256), free, 1000) == ()


def test_no_larger_parts_are_measured_where_the_batch_plainly_fits():
    free = 8_000_000_000
    ladder = foreseen(start(8192), (128, 5_500_000), (256, 6_600_000), used=0, free=free)
    assert larger_to_measure(ladder, (128, 256), free, 8192) == ()

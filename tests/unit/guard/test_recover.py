"""The ladder: it finds what fits in few tries, does not halve near the limit, grows again, and ends."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.guard.recovery.ladder import Allowed, Failure, Ladder, Line, after_failure, after_success, resize, start
from penstock.guard.recovery.microbatch import part_sizes
from penstock.guard.torch.guard import ladder_from


def run(ladder: Ladder, fits: int, steps: int) -> tuple[Ladder, list[int], int]:
    """Take steps of whole batches where parts of at most `fits` rows work."""
    sizes, failures = [], 0
    for _ in range(steps):
        while True:
            largest = max(part_sizes(ladder.batch, ladder.micro))
            if largest <= fits:
                break
            failures += 1
            ladder, decision = after_failure(ladder, Failure("forward", largest), Allowed())
            assert decision.rung == "smaller" and decision.micro < largest
        sizes.append(largest)
        ladder, _ = after_success(ladder, largest)
    return ladder, sizes, failures


@settings(deadline=None)
@given(batch=st.integers(2, 2000), data=st.data())
def test_always_finds_a_size_that_works(batch, data):
    fits = data.draw(st.integers(1, batch))
    _, sizes, failures = run(start(batch), fits, 200)
    assert all(size <= fits for size in sizes)
    assert failures <= 20


@settings(deadline=None)
@given(batch=st.integers(50, 2000), data=st.data())
def test_regrowth_comes_near_what_fits(batch, data):
    fits = data.draw(st.integers(batch // 20 + 2, batch))
    _, sizes, _ = run(start(batch), fits, 4000)
    best = len(part_sizes(batch, fits))
    assert len(part_sizes(batch, sizes[-1])) <= max(best + 1, best * 1.35)


def test_unknown_size_is_halved_and_known_one_stepped():
    ladder = start(256)
    ladder, decision = after_failure(ladder, Failure("forward", 256), Allowed())
    assert decision.micro == 128
    ladder, _ = after_success(ladder, 128)
    ladder, decision = after_failure(ladder, Failure("forward", 128), Allowed())
    assert decision.micro == 115  # it worked before: 0.9, not half


def test_forecast_is_corrected_by_what_was_seen():
    # The forecast says 200 rows fit in 1000 bytes; 200 fail, so a row costs at least (1000-100)/200.
    ladder = start(400, limit=1000, line=Line(base=100, per_sample=4.3))
    assert ladder.micro == 202
    ladder, decision = after_failure(ladder, Failure("backward", 200), Allowed())
    assert ladder.line is not None and ladder.line.per_sample == pytest.approx(4.5)
    assert 170 <= decision.micro <= 180


def test_forecast_jumps_straight_to_what_fits():
    ladder = dataclasses.replace(start(1024), limit=1000, line=Line(base=100, per_sample=30))
    _, decision = after_failure(ladder, Failure("forward", 1024), Allowed())
    assert decision.micro == 29


def test_failed_growth_goes_back_and_waits_longer():
    ladder, sizes, failures = run(start(100, micro=40), 45, 3000)
    assert 0 < failures <= 8
    assert sizes[-1] <= 45
    assert ladder.patience > 16


def test_grows_back_when_memory_returns():
    ladder, _, _ = run(start(64), 10, 50)
    ladder, sizes, failures = run(ladder, 64, 20000)
    assert sizes[-1] == 64 and failures == 0


def test_apply_is_tried_again_first_then_gives_up_soon():
    ladder = start(64)
    rungs = []
    while not rungs or rungs[-1] != "give up":
        ladder, decision = after_failure(ladder, Failure("apply", ladder.micro, "no memory"), Allowed())
        rungs.append(decision.rung)
    assert rungs[0] == "again" and len(rungs) <= 5
    assert "optimizer" in decision.why and "no memory" in decision.why


def test_rungs_at_one_sample_are_climbed_only_if_allowed():
    ladder, decision = after_failure(start(8, micro=1), Failure("forward", 1), Allowed(precision=True, remat=True))
    assert decision.rung == "precision"
    ladder, decision = after_failure(ladder, Failure("forward", 1), Allowed(precision=True, remat=True))
    assert decision.rung == "remat"
    _, decision = after_failure(ladder, Failure("forward", 1, "said so"), Allowed(precision=True, remat=True))
    assert decision.rung == "give up" and "rematerialisation" in decision.why and "said so" in decision.why
    _, decision = after_failure(start(8, micro=1), Failure("forward", 1), Allowed())
    assert decision.rung == "give up" and 'precision="auto"' in decision.why


def test_larger_batch_stays_whole_unless_something_failed():
    assert resize(start(32), 64).micro == 64
    ladder, _ = after_failure(start(32), Failure("forward", 32), Allowed())
    assert resize(ladder, 64).micro == 16
    assert resize(start(32), 8) == start(32)


def test_ladder_survives_json():
    ladder = start(400, limit=1000, line=Line(100, 4.3))
    assert ladder_from(json.loads(json.dumps(dataclasses.asdict(ladder)))) == ladder


def test_a_step_in_one_call_is_not_told_as_a_pass():
    """Where one call does all, nobody knows whether it was the forward pass, the backward pass or the optimizer."""
    _, decision = after_failure(start(1), Failure("step", 1, "no room"), Allowed())
    assert decision.rung == "give up" and "The step of 1 sample does not fit" in decision.why

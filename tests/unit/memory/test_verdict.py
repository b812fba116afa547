"""The verdict before the kernel's: only for growth that nothing can stop, and with words that name it."""

from __future__ import annotations

from penstock.memory.verdict import AHEAD_SAMPLES, CLOSE_S, FASTEST_S, Growth, GrowthSample

MB = 10**6
LIMIT = 700 * MB


def fed(sizes, *, leased=lambda i: 0, nothing_left=True):
    growth, due = Growth(), []
    for index, nbytes in enumerate(sizes):
        growth.note(GrowthSample(index * 0.1, nbytes * MB, leased(index) * MB))
        due.append(growth.due(LIMIT, nothing_left=nothing_left))
    return growth, due


def test_steady_growth_is_stopped_before_the_limit():
    growth, due = fed(range(300, 700, 5))
    first = due.index(True)
    assert 0.9 * 700 <= 300 + 5 * first < 700 - 5
    words = growth.words(LIMIT, {})
    assert "of 700 MB" in words and "outside of all data buffers" in words and "map()" in words and len(words) < 500


def test_a_run_that_sits_close_to_its_limit_is_left_alone():
    assert not any(fed([690] * 100)[1])
    assert not any(fed([688, 692] * 100)[1])


def test_a_jump_is_no_leak_and_rungs_come_first():
    assert not any(fed([300] * 20 + [640] + [640] * 50)[1])
    assert not any(fed(range(300, 700, 5), nothing_left=False)[1])


def test_data_that_is_kept_is_named_as_such():
    growth, _ = fed(range(300, 690, 5), leased=lambda i: 5 * i)
    assert "most of it data (reader 300 MB)" in growth.words(LIMIT, {"reader": 300 * MB})


def test_fast_growth_hurries_from_afar():
    growth, _ = fed(range(100, 420, 30))
    assert growth.hurries(LIMIT) and AHEAD_SAMPLES * 30 + 400 >= 700


def test_samples_come_faster_as_the_limit_comes_nearer():
    def pause(*sizes):
        growth = Growth()
        for index, nbytes in enumerate(sizes):
            growth.note(GrowthSample(index * 0.1, nbytes * MB, 0))
        return growth.pause_s(LIMIT, 0.1)

    assert pause() == pause(100) == pause(100, 100) == 0.1
    assert pause(680, 680) == CLOSE_S
    assert pause(300, 400) < 0.02  # 1 GB a second
    assert pause(500, 680) == FASTEST_S


def test_a_jump_that_is_seen_from_near_is_no_leak_yet():
    """Samples are milliseconds apart while memory grows: 20 ms in the last tenth are not enough."""
    growth, due = Growth(), []
    for index, nbytes in enumerate([300, 340, 400, 460, 520, 560, 635, 640, 645, 650, 655, 655, 655, 655]):
        growth.note(GrowthSample(index * 0.005, nbytes * MB, 0))
        due.append(growth.due(LIMIT, nothing_left=True))
    assert not any(due)


def test_growth_that_may_outrun_the_verdict_is_told_beforehand():
    growth, told = Growth(), []
    for index, nbytes in enumerate(range(100, 700, 20)):  # 2 GB a second
        growth.note(GrowthSample(index * 0.01, nbytes * MB, 0))
        told.append(growth.foreseen(LIMIT))
    first = 100 + 20 * told.index(True)
    assert 0.4 * 700 <= first <= 0.5 * 700 and all(told[told.index(True) :])
    words = growth.warning(LIMIT, {})
    assert "grows by 2 GB a second" in words and "outside of all data buffers" in words and len(words) < 500


def test_slow_growth_and_steady_memory_are_not_told_beforehand():
    for sizes in (range(300, 600, 5), [690] * 60, [300] * 20 + [640] * 40):
        growth = Growth()
        for index, nbytes in enumerate(sizes):
            growth.note(GrowthSample(index * 0.1, nbytes * MB, 0))
            assert not growth.foreseen(LIMIT)

"""Watching memory from Python: blocks, functions in a child, notebook cells."""

from __future__ import annotations

import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

import penstock as ps
from penstock.core.errors import OutOfMemory, PenstockError
from penstock.doctor.jupyter import load_ipython_extension


def hold(nbytes: int) -> None:
    data = bytearray(b"x") * nbytes
    time.sleep(0.15)
    assert data[-1] == ord("x")


def test_the_peak_of_a_block_is_seen_though_it_is_gone_at_the_end():
    with ps.watch_memory() as watched:
        hold(60_000_000)
    assert watched.peak - watched.before > 50_000_000
    assert watched.grown < 30_000_000
    assert "peak" in str(watched)


def test_a_block_is_stopped_before_the_process_is_killed():
    kept = []
    with pytest.raises(OutOfMemory, match="stopped at"):
        with ps.watch_memory() as before, ps.watch_memory(stop_at=before.before + 80_000_000):
            while True:
                kept.append(bytearray(b"x") * 1_000_000)
    assert 50 < len(kept) < 2_000


def test_a_function_is_measured_in_a_process_of_its_own():
    ballast = bytearray(b"x") * 100_000_000  # this process's memory does not count
    assert 50_000_000 < ps.assert_peak_below("90MB", lambda: hold(60_000_000)) < 90_000_000
    with pytest.raises(AssertionError, match="more than 30 MB"):
        ps.assert_peak_below("30MB", lambda: hold(60_000_000))
    assert len(ballast) == 100_000_000


def test_a_peak_that_is_over_at_once_counts():
    """Nothing sleeps here: no look of fifty a second need meet it."""
    assert 35_000_000 < ps.assert_peak_below("60MB", lambda: len(bytearray(b"x") * 40_000_000)) < 60_000_000
    with pytest.raises(AssertionError, match="more than 20 MB"):
        ps.assert_peak_below("20MB", lambda: len(bytearray(b"x") * 40_000_000))


def test_a_function_that_fails_is_not_taken_for_a_small_one():
    with pytest.raises(PenstockError, match="exit code"):
        ps.assert_peak_below("30MB", lambda: 1 / 0)


def test_a_cell_is_guarded(capsys):
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell_magic("penstock", "", "kept_by_cell = 5")
    assert shell.user_ns["kept_by_cell"] == 5
    assert "peak" in capsys.readouterr().out
    shell.run_cell_magic("penstock", "300 cats", "never_run = 1")
    assert "is not a size" in capsys.readouterr().out
    assert "never_run" not in shell.user_ns

"""Being asked to stop: the flag, the handler that was there before, and the line that is said."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock.guard.stop import StopSignal, tell_stopped


def test_the_signal_is_a_flag_and_the_handler_of_before_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_line_says_where_the_run_is_saved_and_how_to_go_on(capsys):
    tell_stopped(Path("runs/a b"), epoch=1, step=3)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "penstock: stopped at epoch 2, batch 3, as asked; the run is saved in runs/a b. "
        "To go on: fit(..., checkpoint='runs/a b', resume=True).\n"
    )

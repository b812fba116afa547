"""Checkpoints written beside the training: whole, one at a time, and no error is lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from penstock.core.events import events
from penstock.guard.checkpoint import saver as module
from penstock.guard.checkpoint.folder import CheckpointFolder
from penstock.guard.checkpoint.saver import Saver
from penstock.memory.budget import Budget

ARRAYS = {"a": np.arange(1000.0), "b": np.ones((3, 4), np.float32)}
NBYTES = sum(array.nbytes for array in ARRAYS.values())


class SlowFolder(CheckpointFolder):
    """Writes only once it is let."""

    def __init__(self, path):
        super().__init__(path, keep=5)
        self.go, self.threads = threading.Event(), []

    def save(self, step, arrays, meta):
        self.threads.append(threading.current_thread())
        assert self.go.wait(10)
        return super().save(step, arrays, meta)


def copies():
    return ((name, array.copy()) for name, array in ARRAYS.items())


def test_training_goes_on_while_it_is_written_and_the_lease_comes_back(tmp_path, monkeypatch):
    budget = Budget(10 * NBYTES)
    monkeypatch.setattr(module, "try_room", lambda nbytes, who: budget.try_lease(nbytes, who=who))
    saver = Saver(SlowFolder(tmp_path))
    live = {name: array.copy() for name, array in ARRAYS.items()}
    assert saver.save(1, lambda: ((n, a.copy()) for n, a in live.items()), NBYTES, {"step": 1})
    assert budget.used == NBYTES and saver.folder.list() == []
    for array in live.values():
        array += 1  # the next training step
    saver.folder.go.set()
    saver.wait()
    assert budget.used == 0
    found = saver.folder.last_good()
    assert found is not None and all(np.array_equal(found.array(n), a) for n, a in ARRAYS.items())
    assert saver.folder.threads[0] is not threading.current_thread()


def test_without_room_it_is_streamed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "try_room", lambda nbytes, who: None)
    folder = SlowFolder(tmp_path)
    folder.go.set()
    assert not Saver(folder).save(1, copies, NBYTES, {})
    assert folder.threads == [threading.current_thread()] and len(folder.list()) == 1


def test_a_copy_that_does_not_fit_after_all_is_streamed(tmp_path, monkeypatch):
    budget = Budget(10 * NBYTES)
    monkeypatch.setattr(module, "try_room", lambda nbytes, who: budget.try_lease(nbytes, who=who))
    tries = []

    def arrays():
        tries.append(1)
        yield "a", ARRAYS["a"]
        if len(tries) == 1:
            raise MemoryError("no room for the second")
        yield "b", ARRAYS["b"]

    assert not Saver(CheckpointFolder(tmp_path)).save(1, arrays, NBYTES, {})
    assert budget.used == 0 and len(tries) == 2
    assert any(event.kind == "guard.save_streamed" for event in events.recent)
    assert CheckpointFolder(tmp_path).last_good().array("b").shape == (3, 4)


def test_at_most_one_is_on_its_way(tmp_path):
    saver = Saver(SlowFolder(tmp_path))
    saver.folder.go.set()
    for step in range(4):
        saver.save(step, copies, NBYTES, {})
        assert sum(thread.name == "penstock-checkpoint" for thread in threading.enumerate()) <= 1
    saver.wait()
    assert len(saver.folder.list()) == 4


def test_an_error_of_the_thread_is_raised_by_whoever_comes_next(tmp_path):
    class Full(CheckpointFolder):
        def save(self, step, arrays, meta):
            raise OSError(28, "No space left on device")

    saver = Saver(Full(tmp_path))
    assert saver.save(1, copies, NBYTES, {})
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    saver.wait()  # told once
    saver.save(2, copies, NBYTES, {})
    with pytest.raises(OSError, match="No space left"):
        saver.save(3, copies, NBYTES, {})

"""Checkpoints written beside the training.

Covers: copying a run's state if there is room and writing it in a thread; streaming it at once if there is not.
Does not cover: the file and the folder (folder.py), what the state is (guard/keras/save.py).

The copy is leased before it is made. At most one checkpoint is on its way: the next one waits for it. An error of the
thread is raised by the next call, at the latest by `wait`, so that none is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.events import events
from penstock.guard.checkpoint.folder import CheckpointFolder, Named
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import try_room
from penstock.memory.budget import Lease

Arrays = Callable[[], Iterable[Named]]


class Saver:
    """Saves into one folder."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, arrays: Arrays, nbytes: int, meta: dict[str, Any], *, now: bool = False) -> bool:
        """Save a step; returns whether it is still being written. `now` writes before it returns.

        `arrays()` yields copies, so that training may go on while they are written; it is asked again where the copy
        did not fit after all.
        """
        self.wait()
        lease = None if now else try_room(nbytes, who="checkpoint")
        copies = None if lease is None else _copied(arrays, lease)
        if lease is None or copies is None:
            self.folder.save(step, arrays(), meta)
            return False
        self._thread = threading.Thread(
            target=self._write, args=(step, copies, meta, lease), name="penstock-checkpoint"
        )
        self._thread.start()
        return True

    def check(self) -> None:
        """Raise what went wrong in the thread, if it is known by now."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until nothing is on its way any more, and raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _write(self, step: int, copies: list[Named], meta: dict[str, Any], lease: Lease) -> None:
        try:
            self.folder.save(step, _taken(copies, lease), meta)
        except BaseException as error:
            self._error = error
        finally:
            copies.clear()
            lease.close()


def _copied(arrays: Arrays, lease: Lease) -> list[Named] | None:
    """All arrays at once; None, with the lease returned, if they do not fit."""
    try:
        with lease.filling():
            return list(arrays())
    except BaseException as error:
        lease.close()
        if classify(error) is None:
            raise
        text = str(error)
    events.emit("guard.save_streamed", "checkpoint", why=text)
    return None


def _taken(copies: list[Named], lease: Lease) -> Iterable[Named]:
    """Each array once, let go as soon as it is written."""
    copies.reverse()
    while copies:
        name, array = copies.pop()
        nbytes = int(array.nbytes)
        yield name, array
        del array
        lease.resize(max(0, lease.nbytes - nbytes))

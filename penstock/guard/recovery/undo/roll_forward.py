"""Units of an optimizer step, taken to the end once the first has begun.

Covers: undoing and repeating the unit that ran out of memory, signals that must wait for the step's end.
Does not cover: reserving memory before the first unit, which the caller does (guard/torch/protect.py).

A step that is undone as a whole needs a copy of everything. Here only the unit that failed is put back from a small
buffer, memory is released, and that unit is taken again: the units before it stay as they are, and the step ends whole.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol, TypeVar

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import memory_is_short, release

U = TypeVar("U", contravariant=True)
PATIENCE_S = 120.0
"""How long one unit is tried. It needs a few megabytes, which were free when the step began."""


class Units(Protocol[U]):
    """How a framework takes one unit."""

    def save(self, unit: U) -> None:
        """Copy what the unit changes."""

    def take(self, unit: U) -> None:
        """Step the unit."""

    def restore(self, unit: U) -> None:
        """Put the copied values back. Allocates nothing of size."""


def roll_forward(units: Sequence[U], how: Units[U], *, who: str) -> None:
    """Take all units, each whole. Memory that runs out before the first has changed anything is the caller's error."""
    with InterruptsWait():
        for index, unit in enumerate(units):
            if not _taken(unit, how, first=index == 0, who=who):
                _insist(unit, how, who=who)


def _taken(unit: U, how: Units[U], *, first: bool, who: str) -> bool:
    """Take a unit; False, with the unit undone, if memory ran out. The first may fail: nothing has changed then."""
    saved = False
    try:
        how.save(unit)
        saved = True
        how.take(unit)
    except BaseException as error:
        if saved:
            how.restore(unit)
        found = classify(error, memory_is_short=memory_is_short)
        if found is None or first:
            raise
        events.emit("guard.unit_again", who, text=found.text)
        return False
    return True


def _insist(unit: U, how: Units[U], *, who: str) -> None:
    """Release memory and take the unit again until it succeeds: the step has begun and must end."""
    until, pause = time.monotonic() + PATIENCE_S, 0.01
    while True:
        release(thorough=True)
        if _taken(unit, how, first=False, who=who):
            return
        if time.monotonic() > until:
            raise OutOfMemory(
                f"{who}: the optimizer step began and could not be finished for {PATIENCE_S:.0f} s, because something "
                f"else took the memory that was reserved for it. The weights are between two steps: resume from the "
                f"last checkpoint.",
                phase="apply",
                micro=0,
            )
        time.sleep(pause)
        pause = min(1.0, pause * 2)


class InterruptsWait:
    """Inside, Ctrl-C and SIGTERM are remembered; they take effect at the end. Only in the main thread."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._came: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, lambda came, _: self._came.append(came))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            # None: set by something other than Python, which cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in self._came:
            signal.raise_signal(number)

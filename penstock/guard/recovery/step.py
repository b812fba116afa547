"""One real batch, whatever it takes: split, try, and on a lack of memory try smaller.

Covers: the attempt, catching the error outside the failing frame, walking the ladder, agreement between ranks.
Does not cover: which size comes next (guard/recover.py), how a framework computes gradients (guard/frameworks/).

A step is: begin -> part, part, ... -> apply. Until `apply` returns nothing has changed: `drop` takes the stepper back
to where `begin` found it. So a batch is applied once or not at all, and it may be tried as often as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.guard import recover
from penstock.guard.classify import classify
from penstock.guard.microbatch import Part, count_rows, split
from penstock.guard.recover import Allowed, Decision, Failure, Ladder, Phase
from penstock.guard.room import memory_is_short, release


class Stepper(Protocol):
    """How one framework takes a step in parts."""

    @property
    def phase(self) -> Phase:
        """What is being done now; told when it fails."""

    def begin(self, parts: Sequence[Part]) -> None:
        """Remember what a failure must restore, and clear the sums."""

    def part(self, part: Part) -> None:
        """Add one part to the sums. Changes nothing that the user can see."""

    def apply(self) -> None:
        """Make the step's result real, once, for the whole batch."""

    def drop(self) -> None:
        """Forget the sums and undo whatever was begun."""

    def free(self) -> None:
        """Empty the framework's caches."""

    def lower_precision(self) -> None:
        """Compute in bfloat16 from now on. Called only if the user allowed it."""

    def rematerialise(self) -> bool | None:
        """Recompute activations from now on, if the user allowed it. True if calling again would recompute more."""


class Ranks(Protocol):
    """Several processes that must take the same decision."""

    def any(self, flag: bool) -> bool:
        """True everywhere if it is True anywhere."""

    def smallest(self, value: int) -> int:
        """The smallest of all ranks' values."""


class OneRank:
    """A job of a single process."""

    def any(self, flag: bool) -> bool:
        return flag

    def smallest(self, value: int) -> int:
        return value


@dataclass
class Control:
    """Runs steps and keeps the ladder between them."""

    who: str
    allowed: Allowed = field(default_factory=Allowed)
    ladder: Ladder | None = None
    ranks: Ranks = field(default_factory=OneRank)
    on_change: Callable[[Ladder], None] | None = None
    on_give_up: Callable[[], None] | None = None
    """Called before the verdict is raised; the state is that of the last good step."""
    first_micro: int | None = None
    limit: int | None = None
    line: recover.Line | None = None
    rows: int = 0
    """Rows of the last batch."""

    def run(self, stepper: Stepper, batch: Any) -> int:
        """Take one step over the whole batch; returns the number of parts that it took."""
        self.rows = count_rows(batch)
        ladder = self._ladder_for(self.rows)
        while True:
            parts = list(split(batch, ladder.micro, rows=self.rows))
            failure = attempt(stepper, parts, self.ranks)
            if failure is None:
                break
            # Here the failed frames are gone, and with them the tensors that the exception pinned.
            stepper.free()
            release(thorough=ladder.repeats > 1)
            ladder = self._step_down(stepper, failure)
        self.ladder, growth = recover.after_success(ladder, parts[0].rows)  # larger parts come first
        if growth is not None:
            self._tell("guard.larger", growth)
        return len(parts)

    def _ladder_for(self, rows: int) -> Ladder:
        if self.ladder is None:
            self.ladder = recover.start(rows, micro=self.first_micro, limit=self.limit, line=self.line)
            self._changed()
        elif rows > self.ladder.batch:
            self.ladder = recover.resize(self.ladder, rows)
            self._changed()
        return self.ladder

    def _step_down(self, stepper: Stepper, failure: Failure) -> Ladder:
        assert self.ladder is not None
        self.ladder, decision = recover.after_failure(self.ladder, failure, self.allowed)
        events.emit("guard.oom", self.who, phase=failure.phase, rows=failure.rows, text=failure.text)
        if decision.rung == "give up":
            if self.on_give_up is not None:
                self.on_give_up()
            raise OutOfMemory(decision.why, phase=failure.phase, micro=failure.rows)
        if decision.rung == "precision":
            stepper.lower_precision()
        elif decision.rung == "remat" and stepper.rematerialise():
            self.ladder = replace(self.ladder, remat_on=False)
        agreed = self.ranks.smallest(self.ladder.micro)
        self.ladder = replace(self.ladder, micro=agreed)
        self._tell(f"guard.{decision.rung}", replace(decision, micro=agreed))
        return self.ladder

    def _tell(self, kind: str, decision: Decision) -> None:
        events.emit(kind, self.who, micro=decision.micro, why=decision.why)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None and self.ladder is not None:
            self.on_change(self.ladder)


def attempt(stepper: Stepper, parts: Sequence[Part], ranks: Ranks) -> Failure | None:
    """Try the step once. Returns what failed, as facts without the exception, or None when it is done."""
    failure = _gradients(stepper, parts)
    if ranks.any(failure is not None):
        stepper.drop()
        return failure or _elsewhere(stepper.phase, parts)
    failure = _apply(stepper, parts)
    if ranks.any(failure is not None):
        stepper.drop()
        return failure or _elsewhere("apply", parts)
    return None


def _gradients(stepper: Stepper, parts: Sequence[Part]) -> Failure | None:
    rows = parts[0].rows
    try:
        stepper.begin(parts)
        for part in parts:
            rows = part.rows
            stepper.part(part)
    except BaseException as error:
        failure = _failure(stepper, error, rows)
        if failure is None:
            raise
        return failure
    return None


def _apply(stepper: Stepper, parts: Sequence[Part]) -> Failure | None:
    try:
        stepper.apply()
    except BaseException as error:
        failure = _failure(stepper, error, parts[0].rows)
        if failure is None:
            raise
        return failure
    return None


def _failure(stepper: Stepper, error: BaseException, rows: int) -> Failure | None:
    """An out-of-memory error as facts; for any other the step is undone, and there are none."""
    found = classify(error, memory_is_short=memory_is_short)
    if found is None:
        stepper.drop()
        return None
    return Failure(stepper.phase, rows, found.text, found.asked_nbytes)


def _elsewhere(phase: Phase, parts: Sequence[Part]) -> Failure:
    return Failure(phase, parts[0].rows, "another rank ran out of memory")

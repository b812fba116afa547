"""One real batch, whatever it takes: split, try, and on a lack of memory try smaller.

Covers: the attempt, catching the error outside the failing frame, walking the ladder, agreement between ranks.
Does not cover: which size comes next (ladder.py), how a framework computes gradients (guard/{keras,torch,jax}).

A step is: begin -> part, part, ... -> prepare -> apply. Until `apply` nothing has changed: `drop` takes the stepper
back to where `begin` found it. So a batch is applied once or not at all, and it may be tried as often as it takes.
Ranks vote after the gradients. Where nothing that follows can fail on any of them (`sure`) that is the only vote; else
they agree also after `prepare` and after `apply`: what has been reserved everywhere can be applied everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.engine.pipe import pipe
from penstock.guard.ranks.agree import OneRank, Ranks
from penstock.guard.ranks.in_step import NO_ROWS
from penstock.guard.recovery import ladder as recover
from penstock.guard.recovery.classify import classify
from penstock.guard.recovery.free_memory import free_nbytes, memory_is_short, release
from penstock.guard.recovery.ladder import Allowed, Decision, Failure, Ladder, Phase
from penstock.guard.recovery.measure_rows import RowPeaks, measure_rows
from penstock.guard.recovery.microbatch import Part, count_rows, split
from penstock.memory.arenas import map_large_blocks
from penstock.memory.meter import Meter

TIGHT = 6
"""Free memory of so many times the parameters: gradients, Adam's state and one gradient more take four of them, and
what is left must hold activations, and holes in the heap. With more, steps should not pay for new pages."""


class Stepper(Protocol):
    """How one framework takes a step in parts."""

    weight: float | None
    """What this rank's gradients are a mean over: rows, tokens; None for a sum. Known after the last part."""

    @property
    def sure(self) -> bool:
        """Whether nothing is left to allocate after the gradients. Asked where there are several ranks."""

    @property
    def phase(self) -> Phase:
        """What is being done now; named when it fails."""

    @property
    def waits_inside(self) -> bool:
        """Whether a pass waits for other ranks, so that it cannot be taken again where one of them failed in it."""

    @property
    def measurable(self) -> bool:
        """Whether a small part costs little and takes this process's memory: nothing compiled for each size, no GPU."""

    def begin(self, parts: Sequence[Part]) -> None:
        """Remember what a failure must restore, and clear the sums."""

    def part(self, part: Part) -> None:
        """Add one part to the sums. Changes nothing that the user can see."""

    def combine(self, ranks: Ranks, share: float) -> None:
        """Add up all ranks' sums, of which this one's count for `share`. Asked only where there are several ranks."""

    def prepare(self) -> None:
        """Reserve what `apply` needs. Changes nothing that the user can see."""

    def apply(self) -> None:
        """Make the step's result real, once, for the whole batch."""

    def drop(self) -> None:
        """Forget the sums and undo whatever was begun."""

    def free(self) -> None:
        """Empty the framework's caches."""

    def lean(self) -> bool:
        """Hold less from now on, at the price of time. True if that may help."""

    def holds(self) -> dict[str, int]:
        """Bytes by owner: parameters, gradients, optimizer state, guard."""

    def lower_precision(self) -> None:
        """Compute in bfloat16 from now on. Called only if the user allowed it."""

    def rematerialise(self) -> bool | None:
        """Recompute activations from now on, if the user allowed it. True if calling again would recompute more."""


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
    wish: Callable[[], bool] = bool
    granted: bool = False
    """Whether any rank had a wish at the last step; asked with the vote that is taken anyway."""
    keeps_little: bool = False
    """Malloc was told to give large blocks back, since memory is tight or has run out."""

    def run(self, stepper: Stepper, batch: Any) -> int:
        """Take one step over the whole batch; returns the number of parts that it took."""
        self.rows = 0 if batch is NO_ROWS else count_rows(batch)
        if self.ladder is None and self._tight(stepper):
            self._keep_little("memory is tight for this model")
        first = self.ladder is None
        ladder = self._ladder_for(max(1, self.rows))
        if first and stepper.waits_inside and self.ranks.size > 1:
            ladder = self._foresee(stepper, batch)
        while True:
            parts = list(split(batch, ladder.micro, rows=self.rows)) if self.rows else []
            failure, self.granted = attempt(stepper, parts, self.ranks, self.wish())
            if failure is None:
                break
            if not self.rows:  # it failed elsewhere, in parts of the size that all ranks use
                failure = replace(failure, rows=ladder.micro)
            # Here the failed frames are gone, and with them the tensors that the exception pinned.
            stepper.free()
            self._keep_little("memory ran out")
            release(thorough=ladder.repeats > 1)
            ladder = self._step_down(stepper, self._measure_rows(stepper, batch, failure))
        self.ladder, growth = recover.after_success(ladder, _largest(parts) or ladder.micro)
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

    def _tight(self, stepper: Stepper) -> bool:
        """Whether holes in the heap may come to matter; once they are there they stay, so it is asked beforehand."""
        return free_nbytes() < TIGHT * stepper.holds()["parameters"]

    def _keep_little(self, since: str) -> None:
        """Parts and steps of several sizes leave holes in the heap, which count as memory in use."""
        if self.keeps_little:
            return
        self.keeps_little = True
        if map_large_blocks():
            why = f"{since}: large blocks go back to the system when they are freed, and are made of new pages"
            events.emit("guard.malloc", self.who, why=why)

    def _measure_rows(self, stepper: Stepper, batch: Any, failure: Failure) -> Failure:
        """Learn what a row takes where nothing is known yet; returns the failure to go on from."""
        assert self.ladder is not None
        while self.rows and stepper.measurable and (sizes := recover.sizes_to_measure(self.ladder, failure)):
            found = _measured(stepper, batch, sizes)
            stepper.free()
            release(thorough=False)
            if isinstance(found, Failure):
                events.emit("guard.oom", self.who, phase=found.phase, rows=found.rows, text=found.text)
                self.ladder, failure = recover.after_failed_measurement(self.ladder, failure, found), found
                continue
            self.ladder = recover.learn(self.ladder, found.small, found.large, used=found.used, free=found.free)
            events.emit("guard.measured", self.who, small=found.small, large=found.large, free=found.free)
            break
        return failure

    def _foresee(self, stepper: Stepper, batch: Any) -> Ladder:
        """Agree on parts that fit on every rank before the first whole pass, by small ones that all take."""
        assert self.ladder is not None
        sizes = recover.sizes_to_measure(self.ladder, Failure("forward", self.rows))
        if self.ranks.any(not sizes or not stepper.measurable or self.first_micro is not None):
            return self.ladder
        while True:
            found = measure_rows(stepper, batch, sizes)
            events.emit("guard.measured", self.who, small=found.small, large=found.large, free=found.free)
            ladder = recover.foreseen(self.ladder, found.small, found.large, used=found.used, free=found.free)
            micro = self.ranks.smallest(ladder.micro)
            larger = recover.larger_to_measure(ladder, sizes, found.free, min(micro, self.rows))
            if not self.ranks.any(bool(larger)):
                break
            sizes = larger or sizes  # ranks that know enough take their parts beside the others
        self.ladder = replace(ladder, micro=micro)
        if self.ladder.micro < self.ladder.batch:
            self._tell("guard.smaller", Decision("smaller", self.ladder.micro, "so many rows fit on every rank"))
        return self.ladder

    def _step_down(self, stepper: Stepper, failure: Failure) -> Ladder:
        assert self.ladder is not None
        self.ladder, decision = recover.after_failure(self.ladder, failure, self.allowed)
        events.emit("guard.oom", self.who, phase=failure.phase, rows=failure.rows, text=failure.text)
        decision = self._lean(stepper, decision)
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

    def _lean(self, stepper: Stepper, decision: Decision) -> Decision:
        """Where fewer rows are not the answer, the stepper holds less; and that comes before giving up."""
        assert self.ladder is not None
        wanted = not self.ladder.lean_on and (decision.lean or decision.rung == "give up")
        # Asked everywhere, whatever was decided here: ranks that do not ask together wait for ever.
        if not self.ranks.any(wanted) or not self.ranks.any(stepper.lean()):
            return decision
        self.ladder = replace(self.ladder, lean_on=True, sizeless=0, stuck=0)
        events.emit("guard.lean", self.who, why="old values are kept in a file from now on, not in memory")
        return replace(decision, rung="lean") if decision.rung == "give up" else decision

    def _tell(self, kind: str, decision: Decision) -> None:
        events.emit(kind, self.who, micro=decision.micro, why=decision.why)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None and self.ladder is not None:
            self.on_change(self.ladder)


def attempt(stepper: Stepper, parts: Sequence[Part], ranks: Ranks, wish: bool = False) -> tuple[Failure | None, bool]:
    """Try the step once. Returns what failed, as facts without the exception, and whether any rank had a wish."""
    failure = _gradients(stepper, parts)
    weight = stepper.weight or 0.0
    sure = ranks.size == 1 or (failure is None and stepper.sure)
    failed, total, wished, unsure = ranks.totals(failure is not None, weight, wish, not sure)
    if failed:
        stepper.drop()
        return failure or _elsewhere(stepper.phase, parts), wished > 0
    if ranks.size > 1:
        stepper.combine(ranks, 1.0 if stepper.weight is None or not total else weight / total)
    for phase in (stepper.prepare, stepper.apply):
        failure = _at_the_end(stepper, phase, parts)
        if failure is not None and ranks.size > 1 and not unsure:
            raise _alone(failure)
        if ranks.any(failure is not None) if unsure else failure is not None:
            stepper.drop()
            return failure or _elsewhere("apply", parts), wished > 0
    return None, wished > 0


def _measured(stepper: Stepper, batch: Any, sizes: tuple[int, ...]) -> RowPeaks | Failure:
    """What small parts take, or that not even they fit."""
    try:
        return measure_rows(stepper, batch, sizes)
    except BaseException as error:
        failure = _failure(stepper, error, max(sizes))
        if failure is None:
            raise
    stepper.drop()
    return failure


def _gradients(stepper: Stepper, parts: Sequence[Part]) -> Failure | None:
    rows = _largest(parts)
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


def _at_the_end(stepper: Stepper, phase: Callable[[], None], parts: Sequence[Part]) -> Failure | None:
    try:
        phase()
    except BaseException as error:
        failure = _failure(stepper, error, _largest(parts))
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
    return Failure(stepper.phase, rows, found.text, found.asked_nbytes, _holders(stepper))


def _holders(stepper: Stepper) -> tuple[tuple[str, int], ...]:
    """What holds the process's memory; what the stepper cannot name comes last."""
    held = stepper.holds()
    budget = pipe().budget
    held["data"] = 0 if budget is None else budget.used
    held["activations, libraries and other"] = max(0, Meter().read().nbytes - sum(held.values()))
    return tuple(held.items())


def _elsewhere(phase: Phase, parts: Sequence[Part]) -> Failure:
    return Failure(phase, _largest(parts), "another rank ran out of memory")


def _alone(failure: Failure) -> OutOfMemory:
    """The other ranks have stepped by now, so this one cannot take the step again."""
    return OutOfMemory(
        f"Memory ran out on this rank in an optimizer step that allocates nothing, and the others took it: resume "
        f"all ranks from the last checkpoint. The framework said: {failure.text[:90]}",
        phase=failure.phase,
        micro=failure.rows,
    )


def _largest(parts: Sequence[Part]) -> int:
    """Rows of the largest part, which comes first; 0 on a rank that has none left."""
    return parts[0].rows if parts else 0

"""What to do after memory ran out, and when to try a larger size again.

Covers: the ladder as pure functions: facts in, the next micro-batch (or the verdict) out.
Does not cover: catching the error (step.py), measuring small parts (measure_rows.py).

Down. A try of thousands of rows costs as much when it fails as when it works, so little is found out by trying. Where
nothing is known, two small parts are measured first (`sizes_to_measure`, `learn`): the line through them
(peak = base + per_sample * rows) says what fits. A failure corrects a line, a forecast's too: the real slope is at
least (limit - base) / rows. Near the limit, that is where this size or one close to it has worked before, steps are of
0.9. Only where nothing can be measured, or the line was wrong twice, is the size halved. An allocation that asked for
the same bytes at two sizes (a gradient, say) does not depend on the rows: the next size is an eighth, so that the
ladder ends in a few tries, and the stepper is asked for its lean form, which holds less beside the rows.
Up. After `patience` calm steps the next size that saves a part is tried, if it stays below what has failed and
what the line allows. A failed attempt doubles the patience; a size that failed is forgiven after a long calm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from penstock.core.sizes import size
from penstock.guard.recovery.microbatch import num_parts

Phase = Literal["forward", "backward", "step", "apply", "evaluate", "predict", "save"]
"""What was being done. "step" is a whole batch in one call, which does not tell how far it came."""
Rung = Literal["again", "lean", "smaller", "larger", "precision", "remat", "give up"]

PATIENCE = 16
FORGIVE = 24
"""A size that failed may be tried again after this many times the patience."""
NEAR = 0.9
SIZELESS = 3
"""Tries for a phase whose memory hardly depends on the micro-batch."""
JUMP = 8
"""Divides the size when an allocation that does not depend on it failed."""
MEASURED_SHARE = 64
"""Divides the size that failed, to measure what a row takes: all measured parts are a twelfth of the batch."""
LEAST_MEASURED_ROWS = 32
"""Below so many rows halving ends as soon as measuring does."""
TRUST = 2
"""Failures in a row after which a line is not believed any more."""
PLAINLY = 4
"""A batch whose forecast from the smallest parts fits this many times needs no better one."""
MARGIN = 0.97
"""Share of the limit that a forecast may fill: allocators round up."""


@dataclass(frozen=True, slots=True)
class Line:
    """Peak bytes of a step as a line over its rows."""

    base: float
    per_sample: float

    def at(self, rows: int) -> float:
        """Predicted peak for so many rows."""
        return self.base + self.per_sample * rows

    def rows_within(self, limit: float) -> int:
        """The most rows whose predicted peak stays within the limit."""
        if self.per_sample <= 0:
            return 1 << 40
        return int((limit * MARGIN - self.base) / self.per_sample)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the ladder may change besides the micro-batch."""

    precision: bool = False
    remat: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """One out-of-memory error: in which phase, with how many rows, what it said."""

    phase: Phase
    rows: int
    text: str = ""
    asked_nbytes: int | None = None
    holds: tuple[tuple[str, int], ...] = ()
    """What held how many bytes when it failed."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """All that recovery remembers. Immutable, JSON-able by `dataclasses.asdict`."""

    batch: int
    micro: int
    limit: int | None = None
    line: Line | None = None
    worked: int = 0
    """Largest part that worked since the last failure below it."""
    failed: int | None = None
    """Smallest part that failed and was not forgiven yet."""
    calm: int = 0
    patience: int = PATIENCE
    repeats: int = 0
    """Failures in a row without one good step between."""
    stuck: int = 0
    """Failures in a row with a single row."""
    proven: bool = False
    """Some step has worked, so one row fits unless something else took the memory."""
    failures: int = 0
    precision_lowered: bool = False
    remat_on: bool = False
    asked: int | None = None
    """Bytes that the last failed allocation asked for, and with how many rows."""
    asked_rows: int = 0
    sizeless: int = 0
    """Failures in a row of a phase whose memory does not depend on the rows."""
    lean_on: bool = False
    """The stepper was asked to hold less."""
    measured: int = 0
    """Rows of the largest part that was measured, and so fits."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next rung, and why, in words."""

    rung: Rung
    micro: int
    why: str
    lean: bool = False
    """The stepper should hold less from now on, if it can: fewer rows are not the answer."""


def start(batch: int, *, micro: int | None = None, limit: int | None = None, line: Line | None = None) -> Ladder:
    """A ladder at its top: the whole batch, or what the forecast says will fit."""
    if micro is None:
        fits = batch if line is None or limit is None else line.rows_within(limit)
        micro = max(1, min(batch, fits))
    return Ladder(batch=batch, micro=min(micro, batch), limit=limit, line=line)


def resize(ladder: Ladder, batch: int) -> Ladder:
    """The ladder for a batch that is larger than any before: whole batches stay whole, split ones stay split."""
    if batch <= ladder.batch:
        return ladder
    micro = batch if ladder.micro == ladder.batch and ladder.failed is None else ladder.micro
    return replace(ladder, batch=batch, micro=micro)


def sizes_to_measure(ladder: Ladder, failure: Failure) -> tuple[int, ...]:
    """Rows of small parts whose memory should be measured before the next try; empty if that would tell nothing new."""
    known = ladder.line is not None or ladder.worked > 0
    if known or failure.phase not in ("forward", "backward") or failure.rows < LEAST_MEASURED_ROWS:
        return ()
    rows = max(2, failure.rows // MEASURED_SHARE)
    return rows, 2 * rows


def learn(ladder: Ladder, small: tuple[int, int], large: tuple[int, int], *, used: int, free: int) -> Ladder:
    """The line through two measured parts, each its rows and its peak above `used`; as before if it does not rise."""
    per_sample = (large[1] - small[1]) / (large[0] - small[0])
    if per_sample <= 0:
        return ladder
    line = Line(base=used + max(0.0, small[1] - per_sample * small[0]), per_sample=per_sample)
    return replace(ladder, line=line, limit=used + free, measured=large[0])


def foreseen(ladder: Ladder, small: tuple[int, int], large: tuple[int, int], *, used: int, free: int) -> Ladder:
    """As `learn`, with the micro-batch that the line allows: where nothing has failed, and nothing may."""
    ladder = learn(ladder, small, large, used=used, free=free)
    if ladder.line is None or ladder.limit is None:
        return ladder
    return replace(ladder, micro=min(ladder.micro, max(ladder.measured, ladder.line.rows_within(ladder.limit))))


def larger_to_measure(ladder: Ladder, sizes: tuple[int, ...], free: int, micro: int) -> tuple[int, ...]:
    """Larger parts to measure before a pass that must not fail, up to a quarter of it; empty if these tell enough.

    Blocks of the smallest parts come from what malloc has, so that their line is too flat by up to a half.
    """
    line, limit = ladder.line, ladder.limit
    if line is not None and limit is not None and line.at(ladder.batch) - (limit - free) <= free / PLAINLY:
        return ()
    large = min(4 * sizes[-1], micro // 4)
    return (large // 2, large) if large > sizes[-1] else ()


def after_failed_measurement(ladder: Ladder, failure: Failure, measured: Failure) -> Ladder:
    """Even a small part failed: what it asked for is remembered, and larger ones need not be tried."""
    ladder = replace(
        ladder, asked=failure.asked_nbytes, asked_rows=failure.rows, micro=min(ladder.micro, measured.rows)
    )
    return replace(ladder, failures=ladder.failures + 1)


def after_failure(ladder: Ladder, failure: Failure, allowed: Allowed) -> tuple[Ladder, Decision]:
    """Step down: what to try next after memory ran out."""
    fixed = failure.asked_nbytes is not None and failure.asked_nbytes == ladder.asked
    fixed = fixed and failure.rows != ladder.asked_rows
    ladder = replace(ladder, calm=0, repeats=ladder.repeats + 1, failures=ladder.failures + 1)
    ladder = replace(ladder, asked=failure.asked_nbytes, asked_rows=failure.rows)
    if failure.phase in ("apply", "save"):
        return _without_size(ladder, failure, allowed)
    if failure.rows <= 1 and ladder.proven and ladder.stuck < SIZELESS:
        ladder = replace(ladder, stuck=ladder.stuck + 1)
        return ladder, Decision("again", ladder.micro, "one sample fitted before: caches freed, tried again", lean=True)
    if failure.rows <= 1:
        return _last_rungs(ladder, failure, allowed)
    line = _corrected(ladder, failure)
    next_rows, why = _smaller(ladder, failure, line)
    if fixed and ladder.worked == 0:
        next_rows = max(1, failure.rows // JUMP)
        why = f"{size(failure.asked_nbytes or 0)} failed with {failure.rows} rows as with more: it is not the rows"
    was_growth = 0 < ladder.worked < failure.rows
    ladder = replace(
        ladder,
        line=line,
        micro=next_rows,
        failed=failure.rows if ladder.failed is None else min(ladder.failed, failure.rows),
        worked=ladder.worked if was_growth else 0,
        patience=ladder.patience * 2 if was_growth else ladder.patience,
    )
    return ladder, Decision("smaller", next_rows, why, lean=fixed)


def _without_size(ladder: Ladder, failure: Failure, allowed: Allowed) -> tuple[Ladder, Decision]:
    """Activations are gone by then, so fewer rows change nothing; freed caches may be all that was missing."""
    ladder = replace(ladder, sizeless=ladder.sizeless + 1)
    if ladder.sizeless >= SIZELESS:
        return _last_rungs(ladder, failure, allowed)
    why = f"{failure.phase} ran out of memory; caches freed, tried again"
    return ladder, Decision("again", ladder.micro, why, lean=ladder.sizeless > 1)


def after_success(ladder: Ladder, rows: int, *, room: int | None = None) -> tuple[Ladder, Decision | None]:
    """Count a good step whose largest part had `rows`; now and then decide to grow. `room` is free bytes."""
    ladder = replace(ladder, calm=ladder.calm + 1, repeats=0, stuck=0, sizeless=0, proven=True)
    ladder = replace(ladder, asked=None, worked=max(ladder.worked, rows))
    if ladder.micro >= ladder.batch or ladder.calm < ladder.patience:
        return ladder, None
    if ladder.failed is not None and ladder.calm >= ladder.patience * FORGIVE:
        line = ladder.line and replace(ladder.line, per_sample=ladder.line.per_sample * NEAR)
        ladder = replace(ladder, failed=None, line=line)
    target = _larger(ladder, room)
    if target is None:
        return ladder, None
    why = f"{ladder.calm} calm steps"
    return replace(ladder, micro=target, calm=0), Decision("larger", target, why)


def verdict(ladder: Ladder, failure: Failure, allowed: Allowed) -> str:
    """The last word: what did not fit, what held the memory, what was tried, what would help."""
    limit = f" within {size(ladder.limit)}" if ladder.limit else ""
    asked = f" ({size(failure.asked_nbytes)} more were asked for)" if failure.asked_nbytes else ""
    tried = f"micro-batches down to {failure.rows}"
    tried += ", lower precision" if ladder.precision_lowered else ""
    tried += ", rematerialisation" if ladder.remat_on else ""
    samples = f"{failure.rows} sample{'s' if failure.rows > 1 else ''}"
    named = {"apply": "The optimizer step", "save": "Saving the checkpoint", "step": f"The step of {samples}"}
    what = named.get(failure.phase, f"The {failure.phase} pass of {samples}")
    held = ", ".join(f"{who} {size(nbytes)}" for who, nbytes in failure.holds if nbytes)
    held = f" Held: {held}." if held else ""
    said = failure.text if len(failure.text) <= 90 else failure.text[:87] + "..."
    return (
        f"{what} does not fit{limit}{asked}.{held} Tried: {tried}. "
        f"What would help: {'; '.join(_advice(ladder, failure, allowed))}. The framework said: {said}"
    )


def _advice(ladder: Ladder, failure: Failure, allowed: Allowed) -> list[str]:
    advice = []
    if failure.phase in ("apply", "save"):
        advice.append("an optimizer with less state (SGD, Adafactor, 8-bit Adam)")
    if not ladder.precision_lowered and not allowed.precision:
        advice.append('precision="auto"')
    if not ladder.remat_on and not allowed.remat:
        advice.append('remat="auto"')
    advice.append("a smaller model" if failure.phase in ("apply", "save") else "smaller samples, or a smaller model")
    need = ladder.line.at(1) if ladder.line is not None else None
    if need is not None and ladder.limit is not None and need > ladder.limit:
        advice.append(f"{size(need - ladder.limit)} more memory")
    return advice


def _last_rungs(ladder: Ladder, failure: Failure, allowed: Allowed) -> tuple[Ladder, Decision]:
    if allowed.precision and not ladder.precision_lowered:
        return replace(ladder, precision_lowered=True), Decision("precision", ladder.micro, "one sample does not fit")
    if allowed.remat and not ladder.remat_on:
        return replace(ladder, remat_on=True), Decision("remat", ladder.micro, "one sample does not fit")
    return ladder, Decision("give up", ladder.micro, verdict(ladder, failure, allowed))


def _corrected(ladder: Ladder, failure: Failure) -> Line | None:
    """The forecast, its slope raised to what the failure proves."""
    if ladder.line is None or ladder.limit is None or ladder.limit <= ladder.line.base:
        return ladder.line
    proven = (ladder.limit - ladder.line.base) / failure.rows
    return replace(ladder.line, per_sample=max(ladder.line.per_sample, proven))


def _smaller(ladder: Ladder, failure: Failure, line: Line | None) -> tuple[int, str]:
    rows = failure.rows
    step = max(1, min(rows - 1, int(rows * NEAR)))
    if 0 < ladder.worked < rows:
        return max(1, min(ladder.worked, step)), f"back to {ladder.worked}, which worked"
    if ladder.repeats == 1 and ladder.worked >= rows:
        return step, f"{rows} worked before: a step of {NEAR}"
    if line is not None and ladder.limit is not None and line.base < ladder.limit and ladder.repeats <= TRUST:
        # Near the limit the margin leaves the line no row, where the part that was measured has just fitted.
        fits = max(line.rows_within(ladder.limit), ladder.measured)
        if 1 <= fits < rows:
            return min(fits, step), f"a sample takes {size(line.per_sample)}: so many fit"
    return max(1, rows // 2), "nothing is known about this size: half"


def _larger(ladder: Ladder, room: int | None) -> int | None:
    """The next size that saves a part, or None if it is known or predicted to fail."""
    parts = num_parts(ladder.batch, ladder.micro)
    target = -(-ladder.batch // (parts - 1))
    if ladder.failed is not None and target >= ladder.failed:
        # Between what worked and what failed: dare the last stretch only in steps of 0.9 of the failure.
        target = int(ladder.failed * NEAR)
        if num_parts(ladder.batch, max(1, target)) >= parts:
            return None
    if ladder.line is not None and ladder.limit is not None and target > ladder.line.rows_within(ladder.limit):
        return None
    if room is not None and ladder.line is not None and ladder.line.per_sample * (target - ladder.micro) > room:
        return None
    return target if target > ladder.micro else None

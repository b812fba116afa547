"""Running a script for some minutes under the limit.

Covers: starting it under `penstock run`'s supervision with a clock, passes cut short so that validation and saving come
early, the worst batch first, a second time without DataLoader workers where those hold much, and saying how the whole
run would end.
Does not cover: the forecast (forecast.py), how passes are cut (run/inject/penstock_inside/rehearsal.py). What was not
seen in time is said.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import NotFound
from penstock.core.sizes import size
from penstock.doctor.evidence.read import read_evidence
from penstock.doctor.rehearse.allocations import allocated_lines
from penstock.doctor.rehearse.forecast import Outlook, outlook
from penstock.doctor.run.supervise import Order, supervise
from penstock.doctor.verdict.facts import Clues
from penstock.doctor.verdict.rank import Ranked, rank

TIGHT = 0.9
MUCH = 0.15
"""Share of the limit that workers must hold for a second rehearsal without them."""
SHORTEST = 0.1
"""Minutes that must be left for it."""
LESS = 0.8
SEEN = {"step": "training step", "evals": "validation", "saves": "save"}


@dataclass(frozen=True)
class Rehearsal:
    """How it will end."""

    fits: bool
    text: str
    lines: tuple[str, ...]
    folder: Path
    outlook: Outlook
    causes: tuple[Ranked, ...]
    steps: int | None
    workers: int = 0
    """Most bytes that other processes than the main one held together at the peak."""
    without_workers: int | None = None
    """The peak of the same rehearsal with num_workers=0, where that was tried."""

    def as_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "text": self.text,
            "peak": self.outlook.peak,
            "per_step": self.outlook.per_step,
            "steps": self.steps,
            "workers": self.workers,
            "without_workers": self.without_workers,
            "dies_at": self.outlook.dies_at,
            "dies_after_s": self.outlook.dies_after_s,
            "causes": [item.cause.name for item in self.causes],
            "lines": list(self.lines),
            "folder": str(self.folder),
        }


def rehearse(script: Path, limit: int, minutes: float) -> Rehearsal:
    """Run the script for at most `minutes` with `limit` bytes and look ahead."""
    if not script.is_file():
        raise NotFound(f"There is no script {script}.")
    folder = Path(tempfile.mkdtemp(prefix="penstock-rehearsal-"))
    begin_s = time.monotonic()
    found = _run(script, folder, limit, minutes, {})
    left = minutes - (time.monotonic() - begin_s) / 60
    if found.workers < MUCH * limit or left < SHORTEST:
        return found
    again = folder / "without-workers"
    alone = _run(script, again, limit, left, {"PENSTOCK_WORKERS": "0"})
    return dataclasses.replace(
        found, without_workers=alone.outlook.peak, lines=(*found.lines, compare_workers(found, alone))
    )


def _run(script: Path, folder: Path, limit: int, minutes: float, env: dict[str, str]) -> Rehearsal:
    supervise(
        Order(
            (sys.executable, str(script)),
            folder,
            limit,
            env={"PENSTOCK_REHEARSE": "1", "PENSTOCK_MEMRAY": "1", **env},
            minutes=minutes,
        )
    )
    return judge_rehearsal(folder, limit)


def compare_workers(found: Rehearsal, alone: Rehearsal) -> str:
    """What the experiment num_workers=0 against N says: are the workers the reason, or only where it shows?"""
    text = f"With num_workers=0 the peak was {size(alone.outlook.peak)}, with workers {size(found.outlook.peak)}"
    if alone.fits and not found.fits:
        return f"{text}: it fits without them, so their copies and batches are what is too much."
    if alone.outlook.peak < LESS * found.outlook.peak:
        return f"{text}: the difference is theirs."
    return f"{text}: they are not the reason."


def judge_rehearsal(folder: Path, limit: int) -> Rehearsal:
    """From the evidence of a rehearsal to how the whole run ends."""
    clues = Clues(read_evidence(folder))
    ahead, steps = outlook(clues.points, limit), full_steps(clues)
    causes = tuple(rank(clues)[:3])
    fits, text = _judged(clues, ahead, limit, steps)
    workers = int(clues.worker_share * clues.shape.peak) if clues.calls("DataLoader") else 0
    lines = (*_lines(clues, causes), *allocated_lines(folder))
    return Rehearsal(fits, text, lines, folder, ahead, causes, steps, workers)


def full_steps(clues: Clues) -> int | None:
    """Training steps of the whole run, from the full lengths of the passes that were cut; None if they are unknown."""
    passes = {call["where"]: call for call in clues.calls("rehearsal.pass") if call.get("training")}
    if not passes or any(call.get("length") is None for call in passes.values()):
        return None
    return sum(int(call["length"]) * int(call["epochs"]) * int(call["count"]) for call in passes.values())


def _judged(clues: Clues, ahead: Outlook, limit: int, steps: int | None) -> tuple[bool, str]:
    if clues.died:
        where = f"step {clues.count('step')}" if clues.count("step") else clues.phase
        return False, f"It does not fit into {size(limit)}: it ended in {where} at {size(ahead.peak)}."
    if clues.ending.kind not in ("finished", "time-limit"):
        return False, f"The script failed before anything could be seen: {clues.ending.text}"
    finished = clues.ending.kind == "finished"
    if ahead.dies_at is not None:
        leak = f"It leaks {size(ahead.per_step)} a step"
        if not finished or steps is None or ahead.dies_at <= steps:
            of = f" of {steps:,}" if finished and steps else ""
            return False, f"{leak} and will die at about step {ahead.dies_at:,}{of}."
        end = ahead.peak + ahead.per_step * max(0, steps - clues.count("step"))
        return True, f"{leak}; the {steps:,} steps of this run would end at about {size(end)} of {size(limit)}."
    if ahead.dies_after_s is not None and not finished:
        minutes = ahead.dies_after_s / 60
        return False, f"It grows by {size(ahead.per_second)} a second and will die after {minutes:.1f} minutes."
    if ahead.peak > TIGHT * limit:
        return False, f"It is within {1 - ahead.peak / limit:.0%} of {size(limit)}: too tight to be trusted."
    how = "the short run finished" if finished else "memory is steady"
    return True, f"It fits: peak {size(ahead.peak)} of {size(limit)}, and {how}."


def _lines(clues: Clues, causes: tuple[Ranked, ...]) -> list[str]:
    found = [f"{item.cause.title}: {item.cause.cure}" for item in causes]
    for call in clues.calls("rehearsal.worst")[:1]:
        if call.get("failed"):
            found.append(f"The worst batch could not be made: {call['failed']}")
        else:
            rows = call["rows"]
            found.append(f"The first batch was made of the largest of {rows} rows: {size(int(call['nbytes']))}.")
    missing = [name for slot, name in SEEN.items() if not clues.count(slot)]
    if missing and not clues.died:
        found.append(f"Not seen, so not counted: {', '.join(missing)}.")
    return found

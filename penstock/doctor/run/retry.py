"""Running a command again after it died for memory.

Covers: one folder per attempt, cures that need no change of the script (environment), when to give up.
Does not cover: smaller batches (guard/) and where a script goes on: the script decides those. It is told by
PENSTOCK_ATTEMPT (2 for the first retry) that it has run before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from penstock.doctor.evidence.folder import VERDICT_HTML, VERDICT_JSON, write_json
from penstock.doctor.run.supervise import Ended, Order, supervise
from penstock.doctor.verdict.html import page
from penstock.doctor.verdict.verdict import RunVerdict, judge

SURE = 0.5


def run_and_judge(order: Order, retries: int, tell: Callable[[RunVerdict, int], None]) -> Ended:
    """Run, judge, and while it died for memory run again, with the settings that its causes ask for."""
    base = order.folder
    for attempt in range(retries + 1):
        folder = base if attempt == 0 else base / f"attempt-{attempt + 1}"
        order = dataclasses.replace(order, folder=folder, attempt=attempt)
        ended = supervise(order)
        verdict = judge(folder)
        write_verdict(verdict)
        cures = cures_of(verdict)
        tell(verdict, attempt)
        if not verdict.memory or ended.exit_code == 0:
            break
        order = dataclasses.replace(order, env={**order.env, **cures, "PENSTOCK_ATTEMPT": str(attempt + 2)})
    return ended


def cures_of(verdict: RunVerdict) -> dict[str, str]:
    """Environment variables that cure without a change of the script."""
    return {k: v for item in verdict.causes if item.score >= SURE for k, v in item.cause.env.items()}


def write_verdict(verdict: RunVerdict) -> Path:
    """Put the verdict beside its evidence."""
    write_json(verdict.folder / VERDICT_JSON, verdict.as_json())
    path = verdict.folder / VERDICT_HTML
    path.write_text(page(verdict), encoding="utf-8")
    return path

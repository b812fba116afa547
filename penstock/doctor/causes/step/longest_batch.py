"""The longest batch arrives late.

Covers: steps that differ in size, and a death at a new highest step after many that fitted.
Does not cover: steady growth (keeping/).
"""

from __future__ import annotations

from statistics import median

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues

CREPT = 0.3
"""Memory that rose by this part of what was missing, before the last step, speaks for growth and not for one batch."""


def live(facts: Clues) -> Sign | None:
    steps = facts.count("step")
    if not facts.died or facts.phase != "train" or steps < 5 or facts.worker_share > 0.4:
        return None
    train = [p for p in facts.points if p.phase == "train"]
    if len(train) < 6 or facts.shape.name == "growth per step":
        return None
    base = sorted(p.used for p in train)[len(train) // 2]
    last = [p for p in facts.points if p.step >= steps - 1]
    jump = max((p.used for p in last), default=0) - base
    missing = facts.limit - base
    third = max(1, len(train) // 3)
    crept = median(p.used for p in train[-third - 1 : -1]) - median(p.used for p in train[:third])
    if missing < 0.2 * facts.limit or (
        max(jump, facts.shape.peak - base) < 0.15 * facts.limit and not facts.says("allocate")
    ):
        return None
    text = f"{steps} steps fitted at about {size(base)}; the next one asked for {size(missing)} more at once"
    return Sign(0.75 if crept < CREPT * missing else 0.35, (text,), nbytes=missing)


CAUSE = Cause(
    name="longest-batch",
    title="A batch that is larger than the others arrived late",
    why=(
        "Batches of variable length are padded to their longest row; the largest one decides, and chance "
        "decides when it comes."
    ),
    cure="Batch by number of tokens, sort into buckets of length, truncate, and show the worst batch first.",
    live=live,
    instead="penstock doctor --rehearse train.py",
)

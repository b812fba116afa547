"""The optimizer's state is made at the first step.

Covers: a run that dies in the first optimizer step although forward and backward fitted.
Does not cover: activations (step_too_big.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    if facts.count("step") > 1 or not facts.died:
        return None
    grown = facts.grew_inside("/torch/optim/", "/optimizers/")
    failed = any(
        "/torch/optim/" in f or "/optimizers/" in f for e in facts.evidence.errors for f in e.get("frames", ())
    )
    if grown < 0.1 * facts.limit and not failed:
        return None
    return Sign(
        0.9,
        (
            f"memory grew by {size(grown)} inside of the first optimizer step"
            if grown
            else "the optimizer could not make its state",
        ),
        nbytes=grown,
    )


def script(script: Script) -> Iterator[Found]:
    return iter(())


CAUSE = Cause(
    name="optimizer-state",
    title="The optimizer's state does not fit",
    why="Adam keeps two more copies of every weight, made at the first step (or when a checkpoint is resumed).",
    cure=(
        "An optimizer with less state (SGD, Adafactor, 8-bit Adam), or a smaller model; count 4 x the weights for Adam."
    ),
    live=live,
    script=script,
    instead="penstock plan: tells weights, gradients and optimizer state before the run",
)

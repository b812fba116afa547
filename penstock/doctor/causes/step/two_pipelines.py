"""Training and validation pipelines are alive together.

Covers: a step of memory at the first validation that stays, with worker processes of both loaders.
Does not cover: validation that records gradients (validation_with_grad.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import SetKeyword, span
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    loaders = [
        call for call in facts.calls("DataLoader") if int(call.get("workers") or 0) > 0 and call.get("persistent")
    ]
    grown = facts.shape.by_phase.get("validation", 0)
    if len({call["where"] for call in loaders}) < 2 or grown < 0.2 * facts.limit or facts.worker_share < 0.4:
        return None
    return Sign(
        0.75,
        (f"two loaders keep their workers; memory grew by {size(grown)} at validation",),
        loaders[-1]["where"],
        grown,
    )


def script(script: Script) -> Iterator[Found]:
    kept = [call for call in script.calls("torch.utils.data.DataLoader") if _keeps_workers(script, call)]
    if len(kept) < 2:
        return
    text = f"{len(kept)} loaders keep their workers, and all of them are alive from the first validation on"
    edits = tuple(SetKeyword(span(script.text, call), "persistent_workers", "False") for call in kept)
    yield Found(script.place(kept[0]), text, edits=edits, sure=False)


def _keeps_workers(script: Script, call: ast.Call) -> bool:
    return script.value(keyword(call, "persistent_workers")) is True


CAUSE = Cause(
    name="two-pipelines",
    title="Training and validation workers are alive together",
    why="persistent_workers keeps the training workers and their prefetched batches while validation starts its own.",
    cure="persistent_workers=False for all loaders, or num_workers=0 for validation.",
    live=live,
    script=script,
)

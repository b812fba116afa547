"""Weights are loaded twice, or once per rank.

Covers: torch.load without mmap beside a model that already has weights.
Does not cover: optimizer state (optimizer_state.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import SetKeyword, span
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    calls = [call for call in facts.calls("torch.load") if not call.get("mmap")]
    if not calls or facts.count("step") > 0:
        return None
    grown = facts.grew_at(calls[-1]["where"], near=1)
    if grown < 0.2 * facts.limit:
        return None
    return Sign(0.85, ("torch.load read the whole checkpoint beside the model",), calls[-1]["where"], grown)


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("torch.load"):
        if keyword(call, "mmap") is None:
            edit = SetKeyword(span(script.text, call), "mmap", "True")
            yield Found(
                script.place(call),
                "torch.load copies the checkpoint into memory, in every rank",
                edits=(edit,),
                near=1,
                sure=False,
            )


CAUSE = Cause(
    name="weights-per-rank",
    title="Weights are in memory twice, or once per rank",
    why="torch.load reads everything before load_state_dict copies it; with N ranks on a machine, N times.",
    cure="torch.load(path, mmap=True, map_location='cpu'), or build the model on the meta device and assign=True.",
    live=live,
    script=script,
    instead="torch.load(path, mmap=True)",
)

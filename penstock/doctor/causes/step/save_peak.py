"""Saving needs a second copy.

Covers: death or a step of memory while a checkpoint is written.
Does not cover: page cache of the written file (system/page_cache.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    grown = facts.shape.by_phase.get("save", 0)
    if facts.phase == "save" and facts.died:
        return Sign(0.88, (f"it died while saving; memory had grown by {size(grown)} there",), nbytes=grown)
    if grown > 0.2 * facts.limit:
        return Sign(0.7, (f"memory grew by {size(grown)} while saving",), nbytes=grown)
    return None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("copy.deepcopy"):
        inner = script.name(getattr(call.args[0], "func", call.args[0])) if call.args else ""
        if "state_dict" in inner or "get_weights" in inner:
            yield Found(script.place(call), "deepcopy of the weights: a second model in memory", near=1)
    saves = any(True for _ in script.calls("torch.save", ".state_dict", ".get_weights", "flax.serialization.to_bytes"))
    for call in script.calls("pickle.dumps", "io.BytesIO", "cloudpickle.dumps", "flax.serialization.to_bytes"):
        if saves:
            yield Found(script.place(call), "the checkpoint is made in memory before it is written", near=4, sure=False)


CAUSE = Cause(
    name="save-peak",
    title="Saving a checkpoint needs a second copy of the state",
    why="The state is gathered, copied or serialised in memory before it is written.",
    cure="torch.save straight to a file, sharded or streamed checkpoints, the full state on one rank only.",
    live=live,
    script=script,
    instead="ps.fit(model, ds, checkpoint=folder): written in pieces",
)

"""A sampler makes a Python list of all indexes.

Covers: DataLoader(shuffle=True), RandomSampler and random_split over very many samples.
Does not cover: iterable datasets.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

EACH = 36
"""Bytes of one index as a Python int in a list."""


def live(facts: Clues) -> Sign | None:
    grown = facts.grew_inside("torch/utils/data/sampler.py")
    if grown > 0.2 * facts.limit:
        return Sign(0.9, (f"memory grew by {size(grown)} inside of torch's sampler",), nbytes=grown)
    said = any("sampler.py" in frame for e in facts.evidence.errors for frame in e.get("frames", ()))
    return Sign(0.9, ("the allocation failed inside of torch's sampler",)) if said and facts.died else None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("torch.randperm"):
        parent = script.parents.get(call)
        count = script.value(call.args[0]) if call.args else None
        if getattr(parent, "attr", "") == "tolist":
            nbytes = count * EACH if isinstance(count, int) else None
            if nbytes is None or nbytes > 100_000_000:
                about = f" about {size(nbytes)}" if nbytes else ""
                yield Found(
                    script.place(call), f"randperm(n).tolist() is a list of Python ints:{about}", nbytes, near=1
                )


CAUSE = Cause(
    name="sampler-lists",
    title="The sampler makes a list of all indexes",
    why="shuffle=True makes randperm(n).tolist(): 8 bytes a tensor entry and 36 more as a Python int, in every rank.",
    cure="A sampler that computes indexes (a keyed permutation), or ps.read_*(...).shuffle(seed=7): no list at all.",
    live=live,
    script=script,
    instead="ps.read_*(...).shuffle(seed=7).torch()",
)

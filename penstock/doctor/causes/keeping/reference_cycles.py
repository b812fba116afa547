"""Reference cycles keep large arrays until the collector runs.

Covers: what gc.collect gave back when it was tried, gc.disable() in a script.
Does not cover: memory that the allocator keeps (system/allocator_keeps.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Replace, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    gave = max((int(p["gc_gave"]) for p in facts.evidence.probes), default=0)
    if gave < 0.15 * facts.limit:
        return None
    cycles = max(int(p["cycles"]) for p in facts.evidence.probes)
    return Sign(0.9, (f"gc.collect gave back {size(gave)} ({cycles} objects in cycles)",), nbytes=gave)


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("gc.disable", "gc.freeze"):
        edit = Replace(span(script.text, call), "gc.enable()")
        yield Found(
            script.place(call), f"{script.name(call.func)}() leaves cycles where they are", edits=(edit,), near=0
        )


CAUSE = Cause(
    name="reference-cycles",
    title="Reference cycles keep memory until the collector runs",
    why="Objects that refer to each other are freed only by Python's collector, which counts objects, not bytes.",
    cure="Break the cycle (weakref, an explicit close), do not disable gc, or call gc.collect() once an epoch.",
    live=live,
    script=script,
    instead="gc.collect() at the end of each epoch",
)

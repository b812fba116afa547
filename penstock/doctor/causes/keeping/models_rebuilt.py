"""Models are built in a loop, and the earlier ones stay.

Covers: Keras and torch models made per trial or fold.
Does not cover: one model that grows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Import, Insert, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

BUILDERS = ("Sequential", "Model")


def live(facts: Clues) -> Sign | None:
    built = facts.count("models")
    calls = facts.calls("keras.Model")
    sites = {call["where"]: int(call["count"]) for call in calls}
    if not sites or max(sites.values()) < 4 or facts.shape.peak < 0.6 * facts.limit:
        return None
    return Sign(
        0.8 if facts.visible < 0.5 else 0.4,  # models are held by the framework, not by a name that can be weighed
        (f"{built} models were built, {max(sites.values())} of them on one line",),
        max(sites, key=lambda w: sites[w]),
    )


def script(script: Script) -> Iterator[Found]:
    if not script.imports("keras", "tensorflow"):
        return
    makers = {f.name for f in ast.walk(script.tree) if isinstance(f, ast.FunctionDef) and _builds(script, f)}
    makers |= {
        c.name
        for c in ast.walk(script.tree)
        if isinstance(c, ast.ClassDef) and any(script.name(b).split(".")[-1] in BUILDERS for b in c.bases)
    }
    for call in script.all_calls:
        name = script.name(call.func)
        loop = script.in_loop(call)
        if loop is None or not (
            name in makers or (name.split(".")[-1] in BUILDERS and name.split(".")[0] in ("keras", "tensorflow"))
        ):
            continue
        if any("clear_session" in script.name(c.func) for c in script.all_calls if script.in_loop(c) is loop):
            continue
        first = loop.body[0]
        edits = (Insert(span(script.text, first), "keras.utils.clear_session()", after=False), Import("import keras"))
        yield Found(script.place(call), "a model is built in every turn of a loop", edits=edits, near=12)


def _builds(script: Script, function: ast.FunctionDef) -> bool:
    return any(
        script.name(call.func).split(".")[-1] in BUILDERS for call in ast.walk(function) if isinstance(call, ast.Call)
    )


CAUSE = Cause(
    name="models-rebuilt",
    title="Models are built in a loop and the earlier ones stay",
    why="Keras's global state, the optimizer and the compiled functions keep a model after its name is gone.",
    cure=(
        "Run trials in processes of their own (multiprocessing's spawn, maxtasksperchild=1). clear_session() helps on "
        "some backends; on TensorFlow compiled functions stay."
    ),
    live=live,
    script=script,
    instead="one process per trial: multiprocessing.get_context('spawn').Pool(1, maxtasksperchild=1)",
)

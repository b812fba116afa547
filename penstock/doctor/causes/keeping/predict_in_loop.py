"""predict is called again and again on small inputs.

Covers: Keras's predict in a loop of the script.
Does not cover: one predict on everything (predict_joins.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Replace, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

GROWN = 0.08
"""Share of the limit: a call leaves some ten kilobytes, and a limit is often close to what the framework needs."""


def live(facts: Clues) -> Sign | None:
    many = facts.count("predicts")
    grown = facts.shape.by_phase.get("predict", 0)
    if many <= 50 or grown < GROWN * facts.limit:
        return None
    calls = facts.calls("keras.predict")
    return Sign(
        0.8,
        (f"predict was called {many} times, and memory grew meanwhile",),
        calls[-1]["where"] if calls else "",
        grown,
    )


def script(script: Script) -> Iterator[Found]:
    if not script.imports("keras", "tensorflow"):
        return
    for call in script.calls(".predict"):
        if script.in_loop(call) is None or not call.args or not isinstance(call.func, ast.Attribute):
            continue
        owner = ast.unparse(call.func.value)
        edit = Replace(span(script.text, call), f"{owner}.predict_on_batch({ast.unparse(call.args[0])})")
        yield Found(
            script.place(call), "predict in a loop sets up a dataset and callbacks each time", edits=(edit,), near=2
        )


CAUSE = Cause(
    name="predict-in-loop",
    title="predict is called in a loop",
    why="Each call makes a dataset, an iterator and callbacks, and some of that stays behind.",
    cure="predict_on_batch(x) or model(x, training=False) for small inputs; one predict over a dataset for many.",
    live=live,
    script=script,
    instead="model.predict_on_batch(x)",
)

"""Functions are traced or compiled again and again.

Covers: tf.function and jax.jit called with ever new shapes or Python values.
Does not cover: the first traces of a model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

COMPILERS = ("tensorflow.function", "jax.jit", "torch.compile")


def live(facts: Clues) -> Sign | None:
    traces, steps = facts.count("traces"), facts.count("step")
    said = facts.says(r"triggered tf\.function retracing")
    if traces < 40 or facts.shape.peak < 0.5 * facts.limit:
        return Sign(0.4, (said,)) if said and facts.shape.peak > 0.5 * facts.limit else None
    text = f"{traces} functions were traced or compiled" + (f" in {steps} steps" if steps else "")
    return Sign(0.6 + (0.2 if traces > 100 else 0) + (0.1 if said else 0), tuple(filter(None, (text, said))))


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(*COMPILERS):
        if script.in_loop(call) is not None:
            yield Found(script.place(call), f"{script.name(call.func)} in a loop compiles anew in each turn", near=3)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and script.in_loop(node) is not None:
            names = [script.name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
            if any(name in COMPILERS for name in names):
                yield Found(script.place(node), "a compiled function is defined in every turn of a loop", near=3)


CAUSE = Cause(
    name="retracing",
    title="Functions are traced or compiled again and again",
    why="Every new shape or Python value is a new program, and its caches are bounded in entries or not at all.",
    cure=(
        "Pad or bucket to a few shapes, pass tensors instead of Python numbers, compile outside of the "
        "loop; jax.clear_caches()."
    ),
    live=live,
    script=script,
    instead="ds.batch(n, drop_remainder=True): one shape",
)

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

TRACES_OF_PREDICT = 4
"""Keras's predict sets up a dataset of its own each time, whose functions are traced (predict_in_loop.py)."""


def live(facts: Clues) -> Sign | None:
    steps = facts.count("step")
    traces = facts.count("traces") - TRACES_OF_PREDICT * facts.count("predicts")
    said = facts.says(r"triggered tf\.function retracing")
    few = 40 if facts.died else 100  # Keras alone traces some dozens
    if traces < few or facts.shape.peak < 0.5 * facts.limit:
        return Sign(0.4, (said,)) if said and facts.shape.peak > 0.5 * facts.limit else None
    text = f"{traces} functions were traced or compiled" + (f" in {steps} steps" if steps else "")
    score = 0.6 + (0.2 if traces > 100 else 0) + (0.1 if said else 0)
    if (
        facts.visible > 0.5
    ):  # programs are held by no name of the script: a name that holds the memory speaks against it
        score *= 0.5
    return Sign(score, tuple(filter(None, (text, said))))


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(*COMPILERS):
        if script.in_loop(call) is not None:
            yield Found(script.place(call), f"{script.name(call.func)} in a loop compiles anew in each turn", near=3)
    yield from _static_arguments(script)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and script.in_loop(node) is not None:
            names = [script.name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
            if any(name in COMPILERS for name in names):
                yield Found(script.place(node), "a compiled function is defined in every turn of a loop", near=3)


def _static_arguments(script: Script) -> Iterator[Found]:
    """A jitted function that gets the counter of a loop as a static argument is compiled in every turn."""
    for function in script.functions.values():
        static = next((s for d in function.decorator_list if (s := _static(script, d)) is not None), None)
        if static is None:
            continue
        places = static if isinstance(static, list) else [static]
        for call in script.calls(function.name):
            loop = script.in_loop(call)
            if not isinstance(loop, ast.For):
                continue
            counters = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            given = [call.args[p] for p in places if isinstance(p, int) and p < len(call.args)]
            given += [k.value for k in call.keywords if k.arg in places]
            if any(isinstance(n, ast.Name) and n.id in counters for g in given for n in ast.walk(g)):
                text = f"{function.name} gets the loop's counter as a static argument: each value is compiled anew"
                yield Found(script.place(call), text, near=3)


def _static(script: Script, decorator: ast.expr) -> object:
    """What a jit decorator calls static: places or names; None if nothing."""
    if not isinstance(decorator, ast.Call):
        return None
    inner = [script.name(decorator.func), *(script.name(arg) for arg in decorator.args)]
    if not any(name in COMPILERS for name in inner):
        return None
    given = next((k.value for k in decorator.keywords if k.arg in ("static_argnums", "static_argnames")), None)
    return script.value(given)


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

"""Matplotlib figures stay open.

Covers: pyplot figures made in a loop and not closed.
Does not cover: the Figure class used directly, which pyplot does not keep.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Import, Insert, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    calls = facts.calls("figure")
    most = max(
        [int(call.get("open", 0)) for call in calls] + [int(r.get("figures", 0)) for r in facts.evidence.holders],
        default=0,
    )
    drawn = facts.grew_inside("/matplotlib/")
    if most < 16 and not (most >= 4 and drawn > 0.2 * facts.limit):  # a few of large pictures are as bad as many
        return None
    return Sign(
        0.92 if facts.shape.peak > 0.5 * facts.limit else 0.6,
        (f"{most} figures are open",),
        calls[-1]["where"] if calls else "",
    )


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("matplotlib.pyplot.figure", "matplotlib.pyplot.subplots"):
        loop = script.in_loop(call) or _function_called_in_loop(script, call)
        if loop is None or any(
            script.name(c.func) == "matplotlib.pyplot.close" for c in ast.walk(loop) if isinstance(c, ast.Call)
        ):
            continue
        owner = next((alias for alias, full in script.aliases.items() if full == "matplotlib.pyplot"), "plt")
        last = span(script.text, loop.body[-1])
        edits = (Insert(last, f'{owner}.close("all")'), Insert(last, "gc.collect()"), Import("import gc"))
        yield Found(script.place(call), "a figure is opened in every turn and never closed", edits=edits, near=10)


def _function_called_in_loop(script: Script, call: ast.Call) -> ast.FunctionDef | None:
    function = script.function(call)
    if function is None:
        return None
    if function.name.startswith("on_"):  # a callback's: once a batch or an epoch
        return function
    return function if any(script.in_loop(c) for c in script.calls(function.name)) else None


CAUSE = Cause(
    name="open-figures",
    title="Figures stay open",
    why="pyplot keeps every figure until it is closed: 10 to 50 MB each. A closed one is a cycle until gc collects it.",
    cure='plt.close("all") and gc.collect() after saving; or one matplotlib.figure.Figure that is cleared and reused.',
    live=live,
    script=script,
    instead='plt.close("all")',
)

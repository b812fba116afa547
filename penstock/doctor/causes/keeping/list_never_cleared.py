"""A list or dictionary of the script grows from step to step and is never cleared.

Covers: logs, histories and buffers of arrays that grow while training goes on.
Does not cover: loss graphs (loss_keeps_graph.py), outputs of evaluation (outputs_kept.py), caches (unbounded_cache.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

CONTAINERS = (
    "builtins.list",
    "builtins.dict",
    "builtins.set",
    "collections.deque",
    "collections.defaultdict",
    "collections.OrderedDict",
)


def live(facts: Clues) -> Sign | None:
    for item in facts.names_after_load if facts.count("step") else facts.names:
        if item.type not in CONTAINERS or item.name.endswith(".queue"):
            continue
        if "grad_fn" in item.detail or "cache" in item.name.lower():
            continue
        grown = item.last - item.first
        if grown > 0.2 * facts.limit and item.last_len > item.first_len:
            text = f"{item.name} grew from {item.first_len} to {item.last_len} items ({size(item.last)}) {item.detail}"
            share = min(1.0, grown / facts.taken)
            return Sign(0.65 + 0.25 * share if facts.count("step") > 2 else 0.45, (text,), nbytes=item.last)
    return None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(".append"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        loop = script.in_loop(call)
        if not isinstance(owner, ast.Name) or loop is None or not _trains(script, loop) or not call.args:
            continue
        name, value = owner.id, call.args[0]
        array = isinstance(value, ast.Call) and script.name(value.func).split(".")[-1] in (
            "numpy",
            "copy",
            "clone",
            "detach",
            "cpu",
            "array",
        )
        if array and not _cleared(script, name):
            text = f"{name} grows with every step and is never cleared"
            yield Found(script.place(call), text, near=1, sure=False, name=name)


def _trains(script: Script, loop: ast.AST) -> bool:
    names = {script.name(node.func).split(".")[-1] for node in ast.walk(loop) if isinstance(node, ast.Call)}
    return bool(names & {"backward", "train_on_batch", "apply_gradients", "apply_updates", "step"})


def _cleared(script: Script, name: str) -> bool:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and script.name(node.func) in (f"{name}.clear", f"{name}.pop", f"{name}.popleft"):
            return True
        if (
            isinstance(node, ast.Assign)
            and script.in_loop(node)
            and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ):
            return True
    return False


CAUSE = Cause(
    name="list-never-cleared",
    title="A list grows with every step and is never cleared",
    why="Arrays that are kept for a log or a metric stay until the list is cleared.",
    cure="Clear it at the end of each epoch, keep a running mean, or write it to a file.",
    live=live,
    script=script,
)

"""A history of losses keeps the graph of every step.

Covers: sums, lists and running means of torch tensors that require gradients.
Does not cover: losses of Keras, which are numbers already.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Replace, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

FEW = 16
"""So many tensors may be what one step needs, in a list of its own."""
DETACHERS = ("item", "detach", "float", "numpy", "no_grad", "tolist")


def live(facts: Clues) -> Sign | None:
    for item in facts.names:
        if "grad_fn" not in item.detail or item.last_len <= max(8, item.first_len):
            continue
        if item.type != "torch.Tensor":
            if item.last_len <= FEW and not facts.died:
                continue
            text = f"{item.name} grew from {item.first_len} to {item.last_len} tensors that still have their graph"
            return Sign(0.95 if item.last_len > FEW else 0.45, (text,))
        if item.last_len > max(64, 2 * item.first_len):
            text = f"the graph of {item.name} grew from {item.first_len} to {item.last_len} operations or more"
            return Sign(0.95, (text,))
    return None


def script(script: Script) -> Iterator[Found]:
    if not script.imports("torch", "lightning", "pytorch_lightning"):
        return
    yield from _running(script)
    for node in ast.walk(script.tree):
        value: ast.expr | None = None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            value = node.value
        elif isinstance(node, ast.Call) and script.name(node.func).endswith(".append") and len(node.args) == 1:
            value = node.args[0]
        if isinstance(value, ast.Name) and "loss" in value.id.lower() and _is_tensor(script, node, value.id):
            edit = Replace(span(script.text, value), f"{value.id}.item()")
            yield Found(
                script.place(node), f"{value.id} is kept with its graph; .item() is missing", edits=(edit,), near=8
            )


def _running(script: Script) -> Iterator[Found]:
    """`mean = 0.9 * mean + 0.1 * loss` in a loop: every mean refers to the one before."""
    differentiated = {script.name(call.func).rpartition(".")[0] for call in script.calls(".backward")}
    models = {script.name(call.func).rpartition(".")[0] for call in script.calls(".parameters")}
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        inside = list(ast.walk(node.value))
        names = {item.id for item in inside if isinstance(item, ast.Name)}
        called = {script.name(item.func) for item in inside if isinstance(item, ast.Call)}
        plain = any(word.split(".")[-1] in DETACHERS for word in called)
        keeps = names & differentiated or called & models
        if script.in_loop(node) is not None and name in names and keeps and not plain and name not in differentiated:
            edit = Replace(span(script.text, node.value), f"float({ast.get_source_segment(script.text, node.value)})")
            text = f"{name} is computed from itself and from a tensor with its graph; .item() is missing"
            yield Found(script.place(node), text, edits=(edit,), near=8)


def _is_tensor(script: Script, node: ast.AST, name: str) -> bool:
    """Whether the same loop calls backward on the name; and the sum itself is not what is differentiated."""
    loop = script.in_loop(node)
    if loop is None:
        return False
    target = node.target.id if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) else ""
    calls = [script.name(call.func) for call in script.calls(".backward")]
    return f"{name}.backward" in calls and f"{target}.backward" not in calls


CAUSE = Cause(
    name="loss-keeps-graph",
    title="The loss history keeps the graph of every step",
    why="A loss tensor refers to everything that computed it; a list or a sum of losses keeps all steps' activations.",
    cure="Keep the number: loss.item() (or loss.detach()).",
    live=live,
    script=script,
    instead="total += loss.item()",
)

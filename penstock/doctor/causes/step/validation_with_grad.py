"""Validation without no_grad.

Covers: model.eval() and a loop of forward passes that records gradients.
Does not cover: Keras, whose evaluate records none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Wrap, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    """Whether gradients are on at one moment says little: libraries turn them off only around the forward pass."""
    grown = facts.shape.by_phase.get("validation", 0)
    looks = [record for record in facts.evidence.holders if record.get("phase") == "validation"]
    if grown < 0.15 * facts.limit or not looks or facts.phase != "validation":
        return None
    graphs = sorted({h["name"] for record in looks for h in record["holders"] if h["detail"].find("grad_fn") >= 0})
    if not graphs or not any(record.get("grad") for record in looks):
        return None
    text = f"memory grew by {size(grown)} in validation, where {', '.join(graphs[:3])} had a graph"
    return Sign(0.9, (text,), nbytes=grown)


def script(script: Script) -> Iterator[Found]:
    if not script.imports("torch"):
        return
    for call in script.calls(".eval"):
        statement = script.parents.get(call)
        block = _block(script, statement)
        if statement is None or script.under(call, "no_grad", "inference_mode") or "set_grad_enabled" in script.text:
            continue
        for after in block[block.index(statement) + 1 :] if statement in block else []:
            inner = {script.name(c.func).split(".")[-1] for c in ast.walk(after) if isinstance(c, ast.Call)}
            if "train" in inner or "backward" in inner:
                break
            if _loops(after) and not inner & {"no_grad", "inference_mode"}:
                edit = Wrap(span(script.text, after), "with torch.no_grad():")
                yield Found(
                    script.place(after),
                    "validation runs without torch.no_grad(): every output keeps its graph",
                    edits=(edit,),
                    near=6,
                )
                break


def _loops(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.For, ast.While)) or (
        isinstance(statement, (ast.Assign, ast.Expr, ast.Return))
        and any(isinstance(node, (ast.ListComp, ast.DictComp)) for node in ast.walk(statement))
    )


def _block(script: Script, statement: ast.AST | None) -> list[ast.stmt]:
    parent = script.parents.get(statement) if statement is not None else None
    return next((b for b in (getattr(parent, "body", []), getattr(parent, "orelse", [])) if statement in b), [])


CAUSE = Cause(
    name="validation-with-grad",
    title="Validation records gradients",
    why="eval() changes layers, not gradients: each forward pass keeps its activations as long as its output lives.",
    cure="with torch.no_grad(): around the validation loop (or @torch.inference_mode()).",
    live=live,
    script=script,
    instead="with torch.no_grad():",
)

"""A step is tried again while the failed one is still alive.

Covers: retrying inside of `except`: the traceback keeps the failed step's frames, and with them its tensors.
Does not cover: retries after the handler has ended.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

ERRORS = ("RuntimeError", "OutOfMemoryError", "ResourceExhaustedError", "MemoryError", "XlaRuntimeError")
STEPS = ("backward", "train_step", "training_step", "train_on_batch", "fit", "forward", "step")


NO_MEMORY = re.compile(r"(?i)memory|RESOURCE_EXHAUSTED|alloc")


def live(facts: Clues) -> Sign | None:
    """Both the last error and the one in whose handler it happened are refused allocations."""
    for error in facts.evidence.errors:
        first = error.get("during") or {}
        if not first or error.get("kind") != "error":
            continue
        texts = [f"{item.get('type')} {item.get('message')}" for item in (first, error)]
        if all(NO_MEMORY.search(text) for text in texts):
            shows = (f"{first['type']} was handled when memory was refused again", f"first at {first['place']}")
            return Sign(0.95, shows, str(first.get("retried") or first.get("place") or ""))
    return None


def script(script: Script) -> Iterator[Found]:
    for handler in (node for node in ast.walk(script.tree) if isinstance(node, ast.ExceptHandler)):
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
        if not any(script.name(kind).split(".")[-1] in ERRORS for kind in kinds):
            continue
        for call in (node for statement in handler.body for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if script.name(call.func).split(".")[-1] in STEPS:
                text = "the step is tried again inside of `except`, where the failed one is still held"
                yield Found(script.place(call), text, near=3, sure=False)
                break


CAUSE = Cause(
    name="retry-in-handler",
    title="A failed step is tried again while it is still held",
    why="Inside of `except` the traceback refers to the frames of the failed step; its tensors cannot be freed.",
    cure="Set a flag in the handler and retry after it; or ps.Guard, which does so.",
    live=live,
    script=script,
    instead="ps.Guard(model, optimizer).step(batch, loss_fn)",
)

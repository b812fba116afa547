"""A step is tried again while the failed one is still alive.

Covers: retrying inside of `except`: the traceback keeps the failed step's frames, and with them its tensors.
Does not cover: retries after the handler has ended.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found
from penstock.doctor.static.script import Script

ERRORS = ("RuntimeError", "OutOfMemoryError", "ResourceExhaustedError", "MemoryError", "XlaRuntimeError")
STEPS = ("backward", "train_step", "training_step", "train_on_batch", "fit", "forward", "step")


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
    script=script,
    instead="ps.Guard(model, optimizer).step(batch, loss_fn)",
)

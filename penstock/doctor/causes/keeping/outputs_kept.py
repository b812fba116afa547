"""Evaluation keeps all outputs until its end.

Covers: lists of logits or predictions filled by a validation or prediction loop; metrics lists that are never cleared.
Does not cover: Keras's predict, which does so by itself (keeping/predict_joins.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.collects import collected
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

WORDS = ("logit", "pred", "output", "out", "prob", "score", "embedding", "feature", "hidden", "result")
LOOPS = (
    "transformers/trainer.py:evaluation_loop",
    "transformers/trainer.py:prediction_loop",
    "sentence_transformers/:encode",
    "lightning/pytorch/loops/prediction_loop.py",
    "pytorch_lightning/loops/prediction_loop.py",
)
"""Loops that gather the outputs of all batches."""
CONTAINERS = ("builtins.list", "builtins.dict", "collections.defaultdict", "collections.deque")
TENSORS = ("torch.Tensor", "numpy.ndarray", "jaxlib", "tensorflow")


def live(facts: Clues) -> Sign | None:
    for item in facts.names:
        if item.type not in CONTAINERS or not any(kind in item.detail for kind in TENSORS) or "grad_fn" in item.detail:
            continue
        if item.last > 0.2 * facts.limit and item.last_len > max(4, item.first_len) and _evaluating(facts, item.name):
            text = f"{item.name} grew to {item.last_len} arrays, {size(item.last)}, during evaluation"
            return Sign(0.9, (text,), nbytes=item.last)
    score, grown = facts.library_share(*LOOPS)
    if score:
        return Sign(score, (f"memory grew by {size(grown)} inside of the library's evaluation loop",), nbytes=grown)
    return None


def _evaluating(facts: Clues, name: str) -> bool:
    """In validation or prediction; before any training step a name that speaks of outputs will do."""
    if facts.phase == "train" and facts.count("step") > 2:
        return False
    return facts.phase in ("validation", "predict") or any(word in name.lower() for word in WORDS)


def script(script: Script) -> Iterator[Found]:
    if not script.imports("torch", "tensorflow", "keras", "jax", "transformers"):
        return
    for item in collected(script):
        if item.loop is None or any(_reduced(script, value) for value in item.values):
            continue
        spoken = any(word in item.name.lower() for word in WORDS)
        without = script.under(item.node, "no_grad", "inference_mode")
        if (without and item.calls(script)) or ("logit" in item.name.lower() and spoken):
            text = f"{item.name or 'a list'} keeps the output of every batch"
            yield Found(script.place(item.node), text, near=3, sure=spoken, name=item.name)


def _reduced(script: Script, node: ast.AST) -> bool:
    """Whether only a number of each output is kept."""
    reducers = ("item", "sum", "mean", "argmax", "max", "topk", "float", "len")
    return any(
        isinstance(call, ast.Call) and script.name(call.func).split(".")[-1] in reducers for call in ast.walk(node)
    )


CAUSE = Cause(
    name="outputs-kept",
    title="Evaluation keeps the outputs of all batches",
    why="Logits are rows x length x vocabulary; a list of all of them grows until evaluation ends.",
    cure=(
        "Reduce each batch to what the metric needs (argmax, a running sum); in transformers "
        "preprocess_logits_for_metrics."
    ),
    live=live,
    script=script,
    instead="ps.evaluate(model, ds): running sums only",
)

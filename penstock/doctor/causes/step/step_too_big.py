"""One training step does not fit.

Covers: a run that dies in its first steps, at the peak of a step; frameworks' allocation errors.
Does not cover: a late step that is larger (longest_batch.py), the optimizer's state (optimizer_state.py).
"""

from __future__ import annotations

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.ending import FRAMEWORK
from penstock.doctor.verdict.facts import Clues

FORWARD = (
    "forward",
    "backward",
    "_run_backward",
    "conv2d",
    "linear",
    "relu",
    "softmax",
    "_call_impl",
    "matmul",
    "train_step",
    "scaled_dot_product_attention",
    "cross_entropy",
)
CALLS = ("model(", ".backward(", "net(", "loss_fn(", "criterion(")
"""How lines of scripts call a step."""


def live(facts: Clues) -> Sign | None:
    said = facts.says(FRAMEWORK.pattern)
    steps = facts.count("step")
    if facts.says(r"Failed to determine best cudnn|Process \d+ has|CUDA_ERROR_OUT_OF_MEMORY") and said:
        return Sign(0.5, (said,))
    if said and steps <= 2:
        return Sign(0.8, (said, f"it happened in step {steps}"))
    if not facts.died or facts.phase not in ("load", "train") or steps > 2 or facts.worker_share > 0.4:
        return None
    inside = [
        item
        for item in facts.grown
        if any(word in item.inner for word in FORWARD) or any(word in facts.code_at(item.place) for word in CALLS)
    ]
    grown = sum(item.nbytes for item in inside)
    if grown < 0.25 * facts.limit:
        return None
    sure = 0.8 if steps else 0.7  # a loop whose steps are not counted looks like the first step
    return Sign(
        sure if facts.contained < 0.3 else 0.45,  # a step's own memory is in no container
        (f"memory grew by {size(grown)} inside of step {steps + 1}", f"at {inside[0].place}"),
        inside[0].place,
        grown,
    )


CAUSE = Cause(
    name="step-too-big",
    title="One training step is larger than the memory",
    why="Activations grow with the batch; all of them are kept until the backward pass.",
    cure=(
        "A smaller batch with gradient accumulation (same effective batch), mixed precision, activation recomputation."
    ),
    live=live,
    instead="ps.fit(model, ds) or ps.Guard(model, optimizer): splits the batch until it fits, same gradient",
)

"""Logits over a large vocabulary, in float32, with their gradient.

Covers: a death in cross_entropy or log_softmax of a tensor whose last dimension is a vocabulary.
Does not cover: logits that evaluation keeps (keeping/outputs_kept.py).
"""

from __future__ import annotations

import re

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues

LARGE = 16_000
COPIES = 3
"""Logits, their softmax and their gradient are as large as each other; the loss's own growth is one of them."""
LOSSES = re.compile(r"cross_entropy|CrossEntropyLoss|log_softmax|nll_loss")


def live(facts: Clues) -> Sign | None:
    """The loss's own memory is as large as the logits: much of it means large logits, whatever they are called."""
    lines = [i for i in facts.grown if LOSSES.search(i.inner) or LOSSES.search(facts.code_at(i.place))]
    grown = sum(item.nbytes for item in lines)
    said = facts.died and bool(facts.says(LOSSES.pattern))
    if not facts.died or not (grown > 0.12 * facts.limit or said):
        return None
    text = f"memory grew by {size(grown)} inside of the loss" if grown else "the allocation failed inside of the loss"
    logits = next((f"{i.name} {i.detail} holds {size(i.last)}" for i in facts.names if _is_wide(i.detail)), "")
    inside = any(LOSSES.search(item.inner) for item in lines)  # else its line may do more than the loss
    return Sign(
        0.9 if (logits or inside) and facts.contained < 0.3 else 0.55,
        tuple(filter(None, (text, logits))),
        lines[0].place if lines else "",
        COPIES * grown,
    )


def _is_wide(detail: str) -> bool:
    """Whether a tensor's last dimension may be a vocabulary."""
    shape = re.search(r"(\d+)\]$", detail)
    return shape is not None and int(shape[1]) >= LARGE


CAUSE = Cause(
    name="vocabulary-logits",
    title="Logits over the whole vocabulary do not fit",
    why="Logits are batch x length x vocabulary in float32; softmax and its gradient are as large again, each.",
    cure="Compute the loss in chunks of rows (with checkpointing), a fused linear cross entropy, or smaller batches.",
    live=live,
    instead="ps.Guard(model, optimizer): splits the batch until it fits, same gradient",
)

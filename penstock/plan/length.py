"""How many elements a plan yields, where that is known without reading.

Covers: arithmetic over steps.
Does not cover: counting by reading.
"""

from __future__ import annotations

from penstock.plan import steps
from penstock.plan.steps import Node


def length(node: Node) -> int | None:
    """The number of elements, or None where that is known only after reading."""
    step = node.step
    if isinstance(step, steps.Read):
        skips = step.source.on_error.mode == "skip"
        return None if skips else step.source.num_rows()
    if isinstance(step, (steps.Filter, steps.MapBatches, steps.Unbatch, steps.Interleave)):
        return _unbatched(node) if isinstance(step, steps.Unbatch) else None
    if isinstance(step, steps.Repeat):
        return _repeated(length(node.input), step.count)
    if len(node.inputs) > 1:
        return _combined(step, [length(child) for child in node.inputs])
    n = length(node.input)
    return None if n is None else _changed(step, n)


def _changed(step: steps.Step, n: int) -> int | None:
    if isinstance(step, steps.Map):
        return n if step.on_error is None or step.on_error.mode == "raise" else None
    if isinstance(step, steps.Batch):
        return n // step.size if step.drop_last else -(-n // step.size)
    if isinstance(step, steps.Take):
        return min(n, step.count)
    if isinstance(step, steps.Skip):
        return max(0, n - step.count)
    if isinstance(step, steps.Shard):
        return max(0, -(-(n - step.index) // step.world))
    return n


def _unbatched(node: Node) -> int | None:
    """Rows that a batch joined and an unbatch takes apart."""
    below = node.input
    if not isinstance(below.step, steps.Batch):
        return None
    n = length(below.input)
    return n if n is None or not below.step.drop_last else n // below.step.size * below.step.size


def _repeated(n: int | None, count: int | None) -> int | None:
    if n == 0:
        return 0
    return None if n is None or count is None else n * count


def _combined(step: steps.Step, lengths: list[int | None]) -> int | None:
    known = [n for n in lengths if n is not None]
    if len(known) < len(lengths):
        return None
    return min(known) if isinstance(step, steps.Zip) else sum(known)

"""Which chains can go on with another number of ranks.

Covers: the reason why one cannot, from its steps alone.
Does not cover: dividing what is left (order/elastic.py).
"""

from __future__ import annotations

from penstock.plan.rewrite import batched
from penstock.plan.steps import Batch, Cache, Filter, Map, MapBatches, Node, Read, Repeat, Shard, Shuffle

_ROWWISE = (Map, Filter, MapBatches)


def why_not_elastic(node: Node) -> str | None:
    """What stands in the way in a rewritten plan, in words; None if the number of ranks may change.

    Above the shard, a state must tell the rows of the source that have left the chain: batches of them, repetitions
    and functions of batches do.
    """
    while isinstance(node.step, (Batch, Repeat)) or (isinstance(node.step, _ROWWISE) and batched(node.input)):
        node = node.input
    shuffled, prepared = False, False
    while isinstance(node.step, (*_ROWWISE, Shuffle)):
        if isinstance(node.step, Shuffle) and shuffled and prepared:
            return "of two shuffles with a function in between"
        shuffled = shuffled or isinstance(node.step, Shuffle)
        prepared = prepared or (shuffled and isinstance(node.step, _ROWWISE))
        node = node.input
    if not isinstance(node.step, Shard):
        return f"{node.step.describe()} stands between shard(i, n) and the end of the chain"
    below = node.input.step
    if not isinstance(below, (Read, Cache)):
        return f"{below.describe()} stands between reading and shard(i, n)"
    return None

"""Walk down a chain, past steps of given kinds.

Covers: the one walk that rewrites, builders and caches use to find what lies below some steps, a source as a rule.
Does not cover: what is done with what is found.
"""

from __future__ import annotations

from penstock.plan.steps import Node, Step


def descend(node: Node, passing: tuple[type[Step], ...]) -> tuple[list[Step], Node]:
    """The steps of the given kinds from `node` down, the lowest first, and the first node that is of none of them."""
    passed: list[Step] = []
    while node.inputs and isinstance(node.step, passing):
        passed.append(node.step)
        node = node.input
    return passed[::-1], node

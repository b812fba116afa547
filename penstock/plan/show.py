"""A plan in words, as the user wrote it.

Covers: `print(ds)`.
Does not cover: the plan as it runs, with bytes (engine/explain.py).
"""

from __future__ import annotations

from penstock.plan.steps import Node


def show(node: Node) -> str:
    """One step a line, in the order in which data passes them."""
    return "\n".join(_lines(node, ""))


def _lines(node: Node, indent: str) -> list[str]:
    if len(node.inputs) <= 1:
        before = _lines(node.input, indent) if node.inputs else []
        return [*before, f"{indent}{'-> ' if node.inputs else ''}{node.step.describe()}"]
    branches = [line for child in node.inputs for line in (*_lines(child, indent + "  | "),)]
    return [*branches, f"{indent}-> {node.step.describe()}"]

"""Edits as data: what to change where, without doing it.

Covers: the five kinds of edit that cures need, and the span of a syntax node.
Does not cover: applying them (apply.py).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

Span = tuple[int, int, int, int]
"""First line, first column, last line, last column; lines from 1, columns from 0, in characters."""


@dataclass(frozen=True)
class SetKeyword:
    """Give a call an argument by name, or change it."""

    span: Span
    name: str
    code: str


@dataclass(frozen=True)
class Replace:
    """Replace an expression."""

    span: Span
    code: str


@dataclass(frozen=True)
class Wrap:
    """Put a statement into a block such as `with torch.no_grad():`."""

    span: Span
    header: str


@dataclass(frozen=True)
class Insert:
    """Add a statement before or after another one, at its indentation."""

    span: Span
    code: str
    after: bool = True


@dataclass(frozen=True)
class Import:
    """Make sure that a module is imported."""

    code: str


Edit = SetKeyword | Replace | Wrap | Insert | Import


def span(text: str, node: ast.AST) -> Span:
    """Where a node stands; ast counts columns in UTF-8 bytes, editors and LibCST in characters."""
    lines = text.splitlines()

    def column(line: int, nbytes: int) -> int:
        return len(lines[line - 1].encode()[:nbytes].decode(errors="ignore"))

    first, last = getattr(node, "lineno"), getattr(node, "end_lineno")  # noqa: B009
    return (first, column(first, node.col_offset), last, column(last, node.end_col_offset))  # type: ignore[attr-defined]

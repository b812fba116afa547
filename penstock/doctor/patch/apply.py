"""Applying edits to a script with LibCST: comments and formatting stay.

Covers: one pass over the tree, edits found by their span; the difference as text.
Does not cover: writing files (cli/doctor.py asks first).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import MissingExtra
from penstock.doctor.patch.edits import Edit, Import, Insert, Replace, SetKeyword, Span, Wrap


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The script after the edits; the same edit twice is done once. Raises MissingExtra without LibCST."""
    try:
        import libcst as cst
        from libcst import metadata
    except ImportError as error:
        raise MissingExtra(what="Patching a script", extra="doctor") from error
    wrapper = metadata.MetadataWrapper(cst.parse_module(text))
    places = wrapper.resolve(metadata.PositionProvider)
    by_span: dict[Span, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        if not isinstance(edit, Import):
            by_span.setdefault(edit.span, []).append(edit)
    module = wrapper.module.visit(_transformer(cst, places, by_span))
    imports = [edit.code for edit in dict.fromkeys(edits) if isinstance(edit, Import)]
    for code in imports:
        module = _with_import(cst, module, code)
    return str(module.code)


def diff(path: Path, before: str, after: str) -> str:
    """The change as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path.name}", f"b/{path.name}"
    )
    return "".join(lines)


def _transformer(cst: Any, places: Any, by_span: dict[Span, list[Edit]]) -> Any:
    class Transformer(cst.CSTTransformer):  # type: ignore[misc]
        def on_leave(self, original: Any, updated: Any) -> Any:
            updated = super().on_leave(original, updated)
            place = places.get(original)
            if place is None or isinstance(updated, (cst.RemovalSentinel, cst.FlattenSentinel)):
                return updated
            key = (place.start.line, place.start.column, place.end.line, place.end.column)
            statement = isinstance(original, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            for edit in by_span.get(key, ()):
                if isinstance(edit, (Wrap, Insert)) and statement:
                    updated = _on_statement(cst, updated, edit)
                elif isinstance(edit, Replace) and isinstance(updated, cst.BaseExpression):
                    updated = cst.parse_expression(edit.code)
                elif isinstance(edit, SetKeyword) and isinstance(updated, cst.Call):
                    updated = _with_keyword(cst, updated, edit)
            return updated

    return Transformer()


def _on_statement(cst: Any, statement: Any, edit: Wrap | Insert) -> Any:
    if isinstance(edit, Insert):
        added = cst.parse_statement(edit.code)
        items = list(statement.nodes) if isinstance(statement, cst.FlattenSentinel) else [statement]
        return cst.FlattenSentinel([*items, added] if edit.after else [added, *items])
    block = cst.parse_statement(f"{edit.header}\n    pass\n")
    leading = statement.leading_lines
    inner = statement.with_changes(leading_lines=())
    return block.with_changes(leading_lines=leading, body=cst.IndentedBlock([inner]))


def _with_keyword(cst: Any, call: Any, edit: SetKeyword) -> Any:
    value = cst.parse_expression(edit.code)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    args = list(call.args)
    for place, item in enumerate(args):
        if item.keyword is not None and item.keyword.value == edit.name:
            args[place] = item.with_changes(value=value)
            return call.with_changes(args=args)
    if args and isinstance(args[-1].comma, cst.MaybeSentinel):
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    args.append(cst.Arg(keyword=cst.Name(edit.name), equal=equal, value=value))
    return call.with_changes(args=args)


def _with_import(cst: Any, module: Any, code: str) -> Any:
    """Put an import after the last one at the top, unless it is there."""
    if any(line.strip() == code for line in module.code.splitlines()):
        return module
    last = 0
    for place, statement in enumerate(module.body):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            last = place + 1
        elif place == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.BaseString):
            last = 1
    body = list(module.body)
    body.insert(last, cst.parse_statement(code))
    return module.with_changes(body=body)

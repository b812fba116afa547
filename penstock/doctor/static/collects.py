"""Containers that a script fills piece by piece.

Covers: append, extend, add and entries of a dictionary in a loop, comprehensions, entries that a Dataset's method adds
to its own container; with what is put in, followed through plain assignments.
Does not cover: arrays of a fixed size that are filled by index: those do not grow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.doctor.static.script import Script

ADDERS = ("append", "extend", "add", "appendleft", "insert", "setdefault", "update")
EMPTY = ("list", "dict", "set", "collections.defaultdict", "collections.deque", "collections.OrderedDict")


@dataclass(frozen=True)
class Collected:
    """One place where a container grows: `name` without `self.`, what goes in, the loop or method around it."""

    node: ast.AST
    name: str
    values: tuple[ast.AST, ...]
    loop: ast.For | ast.While | ast.comprehension | None
    method: ast.FunctionDef | None

    def calls(self, script: Script) -> set[str]:
        """Full names of the functions whose results go in."""
        return {
            script.name(node.func) for value in self.values for node in ast.walk(value) if isinstance(node, ast.Call)
        }


def collected(script: Script) -> Iterator[Collected]:
    """Every place at which a container of the script grows."""
    empties = {name for node in ast.walk(script.tree) for name in _made_empty(script, node)}
    for node in ast.walk(script.tree):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
            kept = node.value if isinstance(node, ast.DictComp) else node.elt
            yield Collected(node, _assigned(script, node), (kept,), node.generators[0], script.function(node))
            continue
        owner, value = _added(script, node)
        name = plain_name(owner)
        loop, method = script.in_loop(node), script.function(node)
        if value is None or not name or (loop is None and not _is_method(script, method)):
            continue
        if isinstance(node, ast.Assign) and name not in empties:
            continue
        yield Collected(node, name, _followed(value, loop or method), loop, method)


def plain_name(node: ast.AST | None) -> str:
    """The last word of a name: `decoded` for `self.decoded`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return plain_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _added(script: Script, node: ast.AST) -> tuple[ast.AST | None, ast.AST | None]:
    """The container and the value, if a statement puts something into one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDERS and node.args:
        return node.func.value, node.args[-1]
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        return node.targets[0].value, node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.List):
        return node.target, node.value
    return None, None


def _made_empty(script: Script, node: ast.AST) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    empty = (isinstance(value, (ast.List, ast.Tuple)) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )
    if isinstance(value, ast.Call) and script.name(value.func) in EMPTY:
        empty = not value.args or script.name(value.func) == "collections.defaultdict"
    return [plain_name(target) for target in targets] if empty else []


def _is_method(script: Script, function: ast.FunctionDef | None) -> bool:
    """A method is called again and again: what it adds to its object, or to a global, accumulates."""
    return function is not None and function.name != "__init__"


def _assigned(script: Script, node: ast.AST) -> str:
    parent = script.parents.get(node)
    return plain_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def _followed(value: ast.AST, around: ast.AST | None) -> tuple[ast.AST, ...]:
    """The value, and what the names in it were assigned to within the loop or method."""
    if around is None:
        return (value,)
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    found = [value]
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            found.append(node.value)
        elif isinstance(node, ast.With):
            found += [
                item.context_expr
                for item in node.items
                if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id in names
            ]
        elif isinstance(node, ast.For) and any(
            isinstance(t, ast.Name) and t.id in names for t in ast.walk(node.target)
        ):
            found.append(node.iter)
    return tuple(found)

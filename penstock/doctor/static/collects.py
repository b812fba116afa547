"""Containers that a script fills piece by piece.

Covers: append, extend, add and entries of a dictionary or of a list of Nones in a loop, comprehensions, entries that a
Dataset's method adds to its own container; with what is put in, followed through assignments, loops and what functions
of the script return.
Does not cover: arrays of a fixed size that are filled by index: those do not grow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.doctor.static.script import Script

ADDERS = ("append", "extend", "add", "appendleft", "insert", "setdefault", "update")
MOST_FOLLOWED = 12
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
            values = (kept, *returned(script, kept))
            yield Collected(node, _assigned(script, node), values, node.generators[0], script.function(node))
            continue
        loop, method = script.in_loop(node), script.function(node)
        if loop is None and not _is_method(script, method):
            continue
        for owner, value in _added(node):
            name = plain_name(owner)
            if name and not (isinstance(node, ast.Assign) and name not in empties):
                yield Collected(node, name, followed(script, value, method or loop), loop, method)


def plain_name(node: ast.AST | None) -> str:
    """The last word of a name: `decoded` for `self.decoded`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return plain_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _added(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """The containers and values, where a statement puts something into some."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDERS and node.args:
        return [(node.func.value, node.args[-1])]
    if isinstance(node, ast.Assign):
        pairs = _pairs(node)
        return [(target.value, value) for target, value in pairs if isinstance(target, ast.Subscript)]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.List):
        return [(node.target, node.value)]
    return []


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Targets and values of an assignment; `a, b = c, d` is two."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts))
    return [(target, value) for target in node.targets]


def _made_empty(script: Script, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Assign):
        return [plain_name(target) for target, value in _pairs(node) if _is_empty(script, value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None and _is_empty(script, node.value):
        return [plain_name(node.target)]
    return []


def _is_empty(script: Script, value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List):
        return all(isinstance(item, ast.Constant) and item.value is None for item in value.left.elts)
    if isinstance(value, ast.Call) and script.name(value.func) in EMPTY:
        return not value.args or script.name(value.func) == "collections.defaultdict"
    return (isinstance(value, (ast.List, ast.Tuple)) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


def _is_method(script: Script, function: ast.FunctionDef | None) -> bool:
    """A method is called again and again: what it adds to its object, or to a global, accumulates."""
    return function is not None and function.name != "__init__"


def _assigned(script: Script, node: ast.AST) -> str:
    parent = script.parents.get(node)
    return plain_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def followed(script: Script, value: ast.AST, around: ast.AST | None) -> tuple[ast.AST, ...]:
    """The value, what the names in it were assigned to nearby, and what functions of the script in it return."""
    found, names = [value], set[str]()
    for item in found:  # grows while it is walked
        fresh = {node.id for node in ast.walk(item) if isinstance(node, ast.Name)} - names
        names |= fresh
        if around is not None and len(found) < MOST_FOLLOWED:
            found += [source for source in _sources(around, fresh) if source not in found]
    return (*found, *(after for item in found for after in returned(script, item)))


def returned(script: Script, value: ast.AST) -> tuple[ast.AST, ...]:
    """What functions of the script that are called in an expression, or handed on by name, return."""
    found: list[ast.AST] = []
    for node in ast.walk(value):
        function = script.functions.get(plain_name(node)) if isinstance(node, (ast.Name, ast.Attribute)) else None
        for after in ast.walk(function) if function is not None else ():
            if isinstance(after, ast.Return) and after.value is not None:
                names = {name.id for name in ast.walk(after.value) if isinstance(name, ast.Name)}
                found += [after.value, *_sources(function, names)]  # type: ignore[arg-type]
    return tuple(found)


def _sources(around: ast.AST, names: set[str]) -> list[ast.AST]:
    """What some names are assigned to, opened as or taken from within a loop or function."""
    found: list[ast.AST] = []
    for node in ast.walk(around):
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            pairs = list(_pairs(node))
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None]
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        found += [
            source
            for target, source in pairs
            if any(isinstance(name, ast.Name) and name.id in names for name in _bound(target))
        ]
    return found


def _bound(target: ast.AST) -> Iterator[ast.AST]:
    """Names that an assignment binds: not those of a subscript or an attribute."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _bound(item)
    else:
        yield target

"""A Python script as its syntax tree, with the questions that detectors ask.

Covers: calls by their full name, simple constants, loops, `with` blocks, functions, modules imported from beside it.
Does not cover: values known only when it runs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.core.errors import BadData, NotFound
from penstock.doctor.static.settings import find_parameters, find_settings

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip
NOTHING: Mapping[str, Any] = MappingProxyType({})
LONGEST_SCRIPT = 5_000_000
MOST_MODULES = 40


@dataclass
class Script:
    """One file."""

    path: Path
    text: str
    tree: ast.Module = field(repr=False)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported name stands for."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Names that are assigned once, to something that can be computed here."""
        found: dict[str, Any] = {}
        often: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in found or name in often:
                    often.add(name)
                    found.pop(name, None)
                    continue
                value = self._compute(node.value, found)
                if value is not None:
                    found[name] = value
        return found

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Options and fields of configurations, by their last word."""
        return find_settings(self.tree, lambda node: self._compute(node, self.constants))

    @cached_property
    def parameters(self) -> dict[ast.FunctionDef, dict[str, Any]]:
        """What parameters of functions stand for, where all calls agree."""
        names = self.constants
        return find_parameters(self.tree, lambda node: self._compute(node, names, self.settings))

    def value(self, node: ast.AST | None) -> Any:
        """What an expression is, if it is simple; None if that cannot be known."""
        if node is None:
            return None
        function = self.function(node)
        names = {**self.constants, **self.parameters.get(function, {})} if function is not None else self.constants
        return self._compute(node, names, self.settings)

    def _compute(self, node: ast.AST, names: dict[str, Any], fields: Mapping[str, Any] = NOTHING) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            return fields.get(node.attr)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._compute(node.operand, names, fields)
            return -inner if isinstance(inner, (int, float)) else None
        if isinstance(node, (ast.Tuple, ast.List)):
            items = [self._compute(item, names, fields) for item in node.elts]
            return None if None in items else items
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._compute(node.left, names, fields), self._compute(node.right, names, fields)
            if isinstance(node.op, ast.Pow) and not (isinstance(right, (int, float)) and abs(right) <= 64):
                return None
            if isinstance(left, (int, float)) and isinstance(right, (int, float)):
                try:
                    return _OPERATORS[type(node.op)](left, right)
                except (ArithmeticError, TypeError, ValueError):
                    return None
            if isinstance(left, str) and isinstance(right, str):
                return (
                    left + right
                    if isinstance(node.op, ast.Add)
                    else f"{left}/{right}"
                    if isinstance(node.op, ast.Div)
                    else None
                )
        if isinstance(node, ast.Call) and self.name(node.func) in ("os.path.join", "pathlib.Path") and node.args:
            parts = [self._compute(item, names, fields) for item in node.args]
            return "/".join(parts) if all(isinstance(part, str) for part in parts) else None
        return None

    def name(self, node: ast.AST) -> str:
        """The full dotted name of an expression: pd.read_csv is pandas.read_csv; a method of an unknown is ?.name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else f"?.{node.attr}"
        return ""

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of functions by full name; a name that begins with a dot is any method of that name."""
        for node in self.all_calls:
            full = self.name(node.func)
            for wanted in names:
                if full == wanted or (wanted.startswith(".") and full.endswith(wanted)):
                    yield node
                    break

    @cached_property
    def all_calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Functions and methods of this file by their bare name, where only one has it."""
        found: dict[str, ast.FunctionDef] = {}
        often: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                often |= {node.name} & found.keys()
                found[node.name] = node
        return {name: function for name, function in found.items() if name not in often}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def in_loop(self, node: ast.AST) -> ast.For | ast.While | None:
        """The innermost loop in whose body a node is; one inside of a function of its own does not count."""
        child = node
        for parent in self.above(node):
            if isinstance(parent, (ast.For, ast.While)) and any(
                child is item or child in ast.walk(item) for item in parent.body
            ):
                return parent
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return None
            child = parent
        return None

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        return next((parent for parent in self.above(node) if isinstance(parent, ast.FunctionDef)), None)

    def under(self, node: ast.AST, *names: str) -> bool:
        """Whether a node is in a `with` of one of these, or in a function decorated by one."""
        for parent in self.above(node):
            items = [item.context_expr for item in parent.items] if isinstance(parent, ast.With) else []
            items += parent.decorator_list if isinstance(parent, ast.FunctionDef) else []
            for item in items:
                target = item.func if isinstance(item, ast.Call) else item
                if self.name(target).split(".")[-1] in names:
                    return True
        return False

    def imports(self, *packages: str) -> bool:
        return any(full.split(".")[0] in packages for full in self.aliases.values())

    def place(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """An argument by its name."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument by its place or its name."""
    return call.args[place] if len(call.args) > place else keyword(call, name)


def read_script(path: Path) -> Script:
    """Read one file; raises NotFound or BadData."""
    if not path.is_file():
        raise NotFound(f"There is no script {path}.")
    if path.stat().st_size > LONGEST_SCRIPT:
        raise BadData(str(path), "the file is too large to be a script")
    try:
        text = path.read_text(encoding="utf-8")
        return Script(path, text, ast.parse(text))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise BadData(f"{path}:{line}" if line else str(path), f"not Python that can be read: {error}") from error


def read_program(path: Path) -> list[Script]:
    """A script and the modules that it imports from beside itself; a module that cannot be read is left out."""
    scripts, pending, seen = [read_script(path)], [path], {path.resolve()}
    for current in pending:  # grows while it is walked
        script = next(item for item in scripts if item.path == current)
        for name in sorted(set(script.aliases.values())):
            parts = name.split(".")
            for depth in range(len(parts), 0, -1):
                candidate = path.parent.joinpath(*parts[:depth]).with_suffix(".py")
                if candidate.is_file() and candidate.resolve() not in seen and len(scripts) < MOST_MODULES:
                    seen.add(candidate.resolve())
                    try:
                        scripts.append(read_script(candidate))
                    except BadData:
                        break
                    pending.append(candidate)
                    break
    return scripts

"""Values that a script gives to its own names elsewhere: arguments of functions, options, fields of a configuration.

Covers: parameters that every call gives the same constant (or leaves at their default), `add_argument(default=...)`,
constants in the body of a class.
Does not cover: values known only when it runs; names with two values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

Compute = Callable[[ast.AST], Any]


def find_settings(tree: ast.Module, compute: Compute) -> dict[str, Any]:
    """Attributes such as `args.data` or `cfg.path`, by their last word; a word with two values is left out."""
    found: dict[str, set[Any]] = {}
    for node in ast.walk(tree):
        for name, value in _given(node, compute):
            if isinstance(value, (str, int, float)):
                found.setdefault(name, set()).add(value)
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


def _given(node: ast.AST, compute: Compute) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        long = next((word for word in words if word.startswith("--")), words[0] if words else "")
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        if long and default is not None:
            yield long.lstrip("-").replace("-", "_"), compute(default)
    elif isinstance(node, ast.ClassDef):
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
                yield item.target.id, compute(item.value)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                yield item.targets[0].id, compute(item.value)


def find_parameters(tree: ast.Module, compute: Compute) -> dict[ast.FunctionDef, dict[str, Any]]:
    """For each function the parameters that have one constant value in all of its calls."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            calls.setdefault(name, []).append(node)
    found: dict[ast.FunctionDef, dict[str, Any]] = {}
    for function, name, skip in _functions(tree):
        given = [_bind(function, call, skip, compute) for call in calls.get(name, ())]
        found[function] = {
            key: value for key, value in (given[0] if given else {}).items()
            if value is not None and all(other.get(key) == value for other in given)
        }  # fmt: skip
    return found


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str, int]]:
    """Functions, the name by which they are called, and how many parameters the call leaves out (`self`)."""
    methods = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    methods.add(item)
                    yield item, node.name if item.name == "__init__" else item.name, 1
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node not in methods:
            yield node, node.name, 0


def _bind(function: ast.FunctionDef, call: ast.Call, skip: int, compute: Compute) -> dict[str, Any]:
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][skip:]
    defaults = function.args.defaults
    bound = {name: compute(value) for name, value in zip(names[len(names) - len(defaults) :], defaults)}
    bound |= {name: compute(value) for name, value in zip(names, call.args)}
    return bound | {item.arg: compute(item.value) for item in call.keywords if item.arg is not None}

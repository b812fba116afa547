"""The house: which room may see which, how large files and functions are, what the public face is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent

# A room may import itself and the rooms named here.
MAY_SEE = {
    "core": set(),
    "memory": {"core"},
    "sources": {"core", "memory"},
    "plan": {"core", "memory"},
    "order": {"core", "memory", "plan"},
    "engine": {"core", "memory", "plan", "order"},
    "feed": {"core", "memory", "plan", "order", "engine"},
    "guard": {"core", "memory", "plan", "order", "engine", "feed"},
    "shrink": {"core", "memory", "plan", "order", "engine", "feed", "guard"},
    "distribute": {"core", "memory", "plan", "order", "engine", "feed", "guard"},
    "watch": {"core", "memory"},
    "doctor": {"core", "memory"},
    "train": {
        "core",
        "memory",
        "sources",
        "plan",
        "order",
        "engine",
        "feed",
        "guard",
        "watch",
        "dataset",
        "read",
    },
    "bench": {"core", "memory", "sources", "plan", "order", "engine", "dataset", "read", "write"},
}


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_SEE)
def test_no_room_imports_upward(room):
    wrong = []
    for path in modules(room):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "penstock" and len(parts) > 1 and parts[1] != room and parts[1] not in MAY_SEE[room]:
                    wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno} imports {name}")
    assert wrong == []


def test_frameworks_are_imported_only_in_their_own_files():
    owners = {"tensorflow", "torch", "jax", "keras"}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found = {name.split(".")[0] for name in names} & owners
            if found and not any(owner in str(path.relative_to(PACKAGE)) for owner in found):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {sorted(found)}")
    assert wrong == []


def test_files_and_functions_are_small():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > 400:
            wrong.append(f"{path.relative_to(PACKAGE)} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno > 60:
                wrong.append(
                    f"{path.relative_to(PACKAGE)}:{node.name} has {(node.end_lineno or 0) - node.lineno} lines"
                )
    assert wrong == []


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []

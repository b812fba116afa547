"""The house: which room may see which, how large files and functions are, what the public face is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent

# A room may import itself and the rooms named here. A file beside the rooms is a room of its own.
DATA = {"core", "memory", "plan", "order", "engine"}
MAY_SEE = {
    "core": set(),
    "memory": {"core"},
    "native": {"core", "memory"},
    "plan": {"core", "memory"},
    "order": {"core", "memory", "plan"},
    "sources": {"core", "memory", "native"},
    "engine": {"core", "memory", "plan", "order", "native"},
    "distribute": DATA | {"dataset", "feed", "guard"},
    "feed": DATA,
    "dataset": DATA | {"feed", "write"},
    "read": DATA | {"dataset", "sources", "native"},
    "write": DATA | {"dataset", "sources", "native"},
    "guard": DATA | {"feed"},
    "compress": DATA | {"feed", "guard"},
    "watch": {"core", "memory"},
    "doctor": {"core", "memory"},
    "train": DATA | {"dataset", "distribute", "feed", "guard", "read", "sources", "watch"},
    "bench": DATA | {"dataset", "read", "sources", "write"},
}
SEE_ALL = {"__init__", "__main__", "cli", "demo"}
"""The front door, the command line and its demonstration may see every room."""


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py")) if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]


def imported_rooms(node: ast.AST) -> list[str]:
    """The rooms that a statement imports from, in whatever form and however deep inside a function."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "penstock":
        names = [f"penstock.{FACE.get(alias.name, alias.name)}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports name their room in full"
        names = [node.module or ""]
    else:
        names = []
    # `import penstock` alone opens every door, so that it counts as the front door.
    found = [name.split(".") for name in names]
    return [(parts[1] if len(parts) > 1 else "__init__") for parts in found if parts[0] == "penstock"]


FACE = {name: room.split(".")[1] for name, room in penstock._ROOM_OF.items()}
"""Where a name of the front door lives."""


def test_every_room_is_known():
    there = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there == MAY_SEE.keys() | SEE_ALL


@pytest.mark.parametrize("room", MAY_SEE)
def test_no_room_imports_upward(room):
    wrong = []
    for path in modules(room):
        for node in ast.walk(ast.parse(path.read_text())):
            for seen in imported_rooms(node):
                if seen != room and seen not in MAY_SEE[room]:
                    wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno} imports {seen}")
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "rooms"),
    [
        ("from penstock import Dataset, fit", ["dataset", "guard"]),
        ("from penstock import sources", ["sources"]),
        ("import penstock.guard.fit as f", ["guard"]),
        ("from penstock.core.errors import BadData", ["core"]),
        ("import penstock", ["__init__"]),
        ("import numpy", []),
    ],
)
def test_every_form_of_import_is_seen(text, rooms):
    assert [room for node in ast.walk(ast.parse(text)) for room in imported_rooms(node)] == rooms


def test_rooms_are_small():
    """At most 15 files beside `__init__.py`; what is below may be a room of its own."""
    rooms = [path for path in PACKAGE.rglob("*") if path.is_dir()]
    sizes = {str(room.relative_to(PACKAGE)): len({*room.glob("*.py")} - {room / "__init__.py"}) for room in rooms}
    assert {room: size for room, size in sizes.items() if size > 15} == {}


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


def test_no_class_name_stands_for_two_things():
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def telling_lines(path: Path) -> list[tuple[int, str]]:
    """Lines by number, without imports, signatures and lists of public names: those are written out on purpose."""
    text, passed_over = path.read_text(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            passed_over |= {*range(node.lineno, node.body[0].lineno)}
        elif isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ):
            passed_over |= {*range(node.lineno, node.end_lineno + 1)}
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in passed_over)
    return [(number, line) for number, line in lines if line not in ("", ")", "]", "}") and not line.startswith("#")]


def test_no_ten_lines_stand_twice():
    found: dict[str, list[str]] = defaultdict(list)
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").rglob("*.py")]:
        lines = telling_lines(path)
        for start in range(len(lines) - 9):
            run = "\n".join(line for _, line in lines[start : start + 10])
            found[run].append(f"{path.relative_to(PACKAGE.parent)}:{lines[start][0]}")
    assert [places for places in found.values() if len(places) > 1] == []

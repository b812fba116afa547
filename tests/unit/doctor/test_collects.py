"""Containers that a script fills, whatever they are called."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from penstock.doctor.static.collects import collected
from penstock.doctor.static.script import Script

GROWS = {
    "append": ("for x in data:\n    kept.append(f(x))", "kept", "f"),
    "entry": ("kept = {}\nfor x in data:\n    kept[x] = f(x)", "kept", "f"),
    "followed": ("for x in data:\n    y = f(x)\n    kept.append(y)", "kept", "f"),
    "with": ("for x in data:\n    with f(x) as y:\n        kept.append(y)", "kept", "f"),
    "comprehension": ("kept = [f(x) for x in data]", "kept", "f"),
    "method": (
        "class D:\n    def __init__(self):\n        self.kept = {}\n"
        "    def __getitem__(self, n):\n        self.kept[n] = f(n)",
        "kept",
        "f",
    ),
}


def read(text: str) -> Script:
    return Script(Path("train.py"), text, ast.parse(text))


@pytest.mark.parametrize(("text", "name", "call"), GROWS.values(), ids=GROWS)
def test_a_container_that_grows_is_found(text, name, call):
    script = read(text)
    found = [item for item in collected(script) if item.name == name]
    assert found
    assert call in found[0].calls(script)


@pytest.mark.parametrize(
    "text",
    [
        "out = np.zeros(10)\nfor i in range(10):\n    out[i] = f(i)",
        "kept.append(f(1))",
        "class D:\n    def __init__(self):\n        self.kept = {}\n        self.kept[1] = 2",
    ],
    ids=["array", "no loop", "constructor"],
)
def test_what_does_not_grow_is_not_found(text):
    assert list(collected(read(text))) == []

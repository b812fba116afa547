"""A cache without a bound.

Covers: functools.cache and lru_cache(None), a dictionary filled in __getitem__ or in a loading function.
Does not cover: tf.data's cache (data/cache_in_memory.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Import, Replace, span
from penstock.doctor.static.collects import Collected, collected, plain_name
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues, HolderGrowth

ENTRIES = 128


DICTIONARIES = ("builtins.dict", "collections.defaultdict", "collections.OrderedDict")
WORDS = ("cache", "memo", "lookup")


def live(facts: Clues) -> Sign | None:
    for item in facts.names:
        unbounded = re.match(r"cache of (\d+), at most None", item.detail)
        if unbounded and int(unbounded[1]) > 16 and facts.shape.peak > 0.5 * facts.limit:
            return Sign(0.85, (f"{item.name} keeps {unbounded[1]} results and has no bound",))
        held = facts.held_by(item.word)
        large = facts.shape.peak > 0.5 * facts.limit and held > 0.15 * facts.limit
        if item.type not in DICTIONARIES or not large:
            continue
        if any(word in item.name.lower() for word in WORDS) or _fills_while_reading(facts, item):
            text = f"{item.name} grew from {item.first_len} to {item.last_len} entries ({size(held)} in all processes)"
            return Sign(0.9 if item.last_len > item.first_len else 0.6, (text,), nbytes=held)
    return None


def _fills_while_reading(facts: Clues, item: HolderGrowth) -> bool:
    """A dictionary below a DataLoader's dataset, or in a worker, that gets entries while rows are read."""
    reads = item.name.startswith("dataset") or item.pid in facts.workers
    return reads and item.last_len > item.first_len > 0


def script(script: Script) -> Iterator[Found]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef):
            yield from _decorated(script, node)
    for item in collected(script):
        if item.method is not None and item.name and _remembers(script, item):
            text = f"{item.name} gets an entry for every sample and loses none"
            yield Found(script.place(item.node), text, near=4, name=item.name)


def _decorated(script: Script, function: ast.FunctionDef) -> Iterator[Found]:
    for decorator in function.decorator_list:
        name = script.name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        sized = script.value(decorator.args[0]) if isinstance(decorator, ast.Call) and decorator.args else None
        given = isinstance(decorator, ast.Call) and (decorator.args or decorator.keywords)
        bound = (
            next((script.value(k.value) for k in decorator.keywords if k.arg == "maxsize"), sized)
            if isinstance(decorator, ast.Call)
            else None
        )
        if name == "functools.cache" or (name == "functools.lru_cache" and given and bound is None):
            edits = (
                Replace(span(script.text, decorator), f"functools.lru_cache(maxsize={ENTRIES})"),
                Import("import functools"),
            )
            yield Found(
                script.place(decorator),
                f"the cache of {function.name} has no bound",
                edits=edits,
                near=len(function.body) + 6,
            )


def _remembers(script: Script, item: Collected) -> bool:
    """Whether a method adds an entry that it looks up first, or a Dataset's method adds one at each call; none goes."""
    added = isinstance(item.node, ast.Assign) or (
        isinstance(item.node, ast.Call) and script.name(item.node.func).split(".")[-1] == "setdefault"
    )
    if not added or _is_emptied(script, item.name):
        return False
    looked_up = any(
        isinstance(node, ast.Compare)
        and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
        and plain_name(node.comparators[-1]) == item.name
        for node in ast.walk(item.method or script.tree)
    )
    return looked_up or (item.method is not None and item.method.name == "__getitem__")


def _is_emptied(script: Script, name: str) -> bool:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clear", "pop", "popitem") and plain_name(node.func.value) == name:
                return True
        elif isinstance(node, ast.Delete) and any(plain_name(target) == name for target in node.targets):
            return True
    return False


CAUSE = Cause(
    name="unbounded-cache",
    title="A cache has no bound",
    why="After one epoch it holds the whole dataset, and with workers each of them has its own.",
    cure="Bound it: functools.lru_cache(maxsize=128); or cache on disk: ps.read_*(...).cache().",
    live=live,
    script=script,
    instead="ps.read_*(...).cache(): bounded in bytes, shared by all workers",
)

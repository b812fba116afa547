"""Forked workers copy the parent's Python objects as they touch them.

Covers: lists and dictionaries in a Dataset read by DataLoader workers: workers grow, the main process does not.
Does not cover: caches that workers fill themselves (keeping/unbounded_cache.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Edit, Import, Replace, span
from penstock.doctor.static.collects import collected, returned
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues, HolderGrowth

MAKERS = ("list", "dict", "json.load", "?.tolist", "?.to_dict", "?.splitlines", "?.readlines", "pickle.load")
"""Functions that give many Python objects."""


def live(facts: Clues) -> Sign | None:
    grown = facts.grown_since_fork
    forked = [pid for pid, board in facts.evidence.boards.items() if board.get("forked") and pid in facts.workers]
    loaders = [call for call in facts.calls("DataLoader") if int(call.get("workers") or 0) > 0]
    holder = next((n for n in facts.names if _is_of_objects(n)), None)
    if not loaders or not forked or grown < 0.15 * facts.limit or holder is None:
        return None
    if any(
        n.last > 0.15 * facts.limit and n.last_len > 1.5 * n.first_len for n in facts.names_since_fork if n.first_len
    ):
        return None  # a container that grows explains it
    text = f"{len(forked)} forked workers took {size(grown)} of their own while reading"
    what = f"a {holder.type.split('.')[1]} of {holder.last_len or 'many'} Python objects"
    return Sign(
        0.9,
        (text, f"{holder.name} is {what}"),
        loaders[0]["where"],
        grown,
    )


def _is_of_objects(holder: HolderGrowth) -> bool:
    """Whether a name holds many Python objects: a long list or dict, a table with columns of them."""
    if holder.type in ("builtins.list", "builtins.dict"):
        return holder.last_len > 10_000
    return " of text" in holder.detail or holder.detail.startswith("object[")


def script(script: Script) -> Iterator[Found]:
    loaders = [call for call in script.calls("torch.utils.data.DataLoader") if _workers(script, call) > 0]
    if not loaders:
        return
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(
            f.name == "__getitem__" for f in node.body if isinstance(f, ast.FunctionDef)
        ):
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    yield from _lists(script, function, loaders[0])


def _lists(script: Script, function: ast.FunctionDef, loader: ast.Call) -> Iterator[Found]:
    for node in ast.walk(function):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
            continue
        many = isinstance(node.value, (ast.ListComp, ast.DictComp)) or (
            isinstance(node.value, ast.Call)
            and (script.name(node.value.func) in MAKERS or _makes_list(script, node.value))
        )
        if many:
            text = (
                f"self.{node.targets[0].attr} is a list or dict of Python objects, which each forked "
                f"worker copies as it reads"
            )
            edits: tuple[Edit, ...] = ()
            if isinstance(node.value, ast.ListComp):
                value = node.value
                edits = (
                    Replace(span(script.text, value), f"np.array({ast.unparse(value)})"),
                    Import("import numpy as np"),
                )
            yield Found(script.place(node), text, edits=edits, near=0, sure=False)


def _makes_list(script: Script, call: ast.Call) -> bool:
    """Whether a function of the script returns a container that it has filled."""
    filled = {item.name for item in collected(script) if item.name}
    return any(isinstance(node, ast.Name) and node.id in filled for node in returned(script, call.func))


def _workers(script: Script, call: ast.Call) -> int:
    value = script.value(keyword(call, "num_workers"))
    return value if isinstance(value, int) else 0


CAUSE = Cause(
    name="copy-on-access",
    title="Forked workers copy the parent's Python objects",
    why=(
        "Reading a Python object changes its reference count, so its page is copied: each worker ends "
        "with its own list."
    ),
    cure="Keep indexes in NumPy arrays (np.array(list)), or read them from a file in each worker.",
    live=live,
    script=script,
    instead="ps.read_*(...).torch(): indexes are packed arrays",
)

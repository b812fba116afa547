"""The shape in which a sample is shown to the user.

Covers: flattening dicts, tuples and bare values to named columns, and back.
Does not cover: dtypes and shapes of the columns (schema.py).

A tree is a column name (a leaf), a tuple of trees, or a dict of trees. `(x, y)` is `("0", "1")`;
`({"a": .., "b": ..}, y)` is `({"a": "0.a", "b": "0.b"}, "1")`; a bare value is the leaf `"value"`.
Lists and arrays are values, as in tf.data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tree = str | tuple["Tree", ...] | dict[str, "Tree"]

BARE = "value"


def flatten(sample: object) -> tuple[Tree, dict[str, Any]]:
    """Split a sample into its tree and its leaves by column name."""
    leaves: dict[str, Any] = {}
    return _walk(sample, "", leaves), leaves


def _walk(node: object, path: str, leaves: dict[str, Any]) -> Tree:
    # Not a function inside `flatten`: one that calls itself is a cycle and would keep the leaves until a collection.
    if isinstance(node, Mapping):
        return {str(key): _walk(value, f"{path}.{key}" if path else str(key), leaves) for key, value in node.items()}
    if isinstance(node, tuple):
        return tuple(_walk(value, f"{path}.{i}" if path else str(i), leaves) for i, value in enumerate(node))
    leaves[path or BARE] = node
    return path or BARE


def unflatten(tree: Tree, leaf: Callable[[str], Any]) -> Any:
    """Rebuild a sample: every column name in `tree` is replaced by `leaf(name)`."""
    if isinstance(tree, str):
        return leaf(tree)
    if isinstance(tree, tuple):
        return tuple(unflatten(node, leaf) for node in tree)
    return {key: unflatten(node, leaf) for key, node in tree.items()}


def map_leaves(sample: object, leaf: Callable[[Any], Any]) -> Any:
    """The sample with `leaf(value)` in the place of each value, without naming the columns on the way."""
    if isinstance(sample, tuple):
        return tuple([map_leaves(value, leaf) for value in sample])
    if isinstance(sample, Mapping):
        return {str(key): map_leaves(value, leaf) for key, value in sample.items()}
    return leaf(sample)


def names(tree: Tree) -> list[str]:
    """Column names in the order in which the tree shows them."""
    found: list[str] = []
    unflatten(tree, found.append)
    return found


def tree_of(columns: list[str]) -> Tree:
    """The plain dict of named columns."""
    return {name: name for name in columns}


def tree_to_json(tree: Tree) -> Any:
    """JSON has no tuples: they become {"tuple": [...]}, dicts become {"dict": {...}}."""
    if isinstance(tree, str):
        return tree
    if isinstance(tree, tuple):
        return {"tuple": [tree_to_json(node) for node in tree]}
    return {"dict": {key: tree_to_json(node) for key, node in tree.items()}}


def tree_from_json(data: Any) -> Tree:
    """The inverse of `tree_to_json`."""
    if isinstance(data, str):
        return data
    if "tuple" in data:
        return tuple(tree_from_json(node) for node in data["tuple"])
    return {key: tree_from_json(node) for key, node in data["dict"].items()}

"""A Keras run on disk.

Covers: the arrays of a model, its optimizer and its metrics, and putting them back into a model of the same shapes.
Does not cover: the file (guard/checkpoint/folder.py), place and history (loop.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from penstock.core.errors import CheckpointError
from penstock.core.tree import flatten, tree_from_json, tree_to_json, unflatten
from penstock.guard.checkpoint.folder import Checkpoint, Named, generators, restore_generators, write
from penstock.guard.keras.parts import Program


def arrays(program: Program) -> Iterator[Named]:
    """All variables, one at a time, then the random generators."""
    for name, variable in _variables(program):
        yield name, program.array_of(variable)
    yield from generators()


def nbytes(program: Program) -> int:
    """Bytes of all variables together."""
    found = 0
    for _, variable in _variables(program):
        bits = "".join(filter(str.isdigit, str(variable.dtype))) or "8"  # bool has none
        found += int(np.prod(variable.shape)) * int(bits) // 8
    return found


def save(path: Path, program: Program, meta: dict[str, Any]) -> None:
    """Save variables under a name of one's own."""
    write(path, arrays(program), {**meta, "shapes": signature(program)})


def restore(program: Program, saved: Checkpoint) -> None:
    """Put variables and random generators back; refuses a checkpoint of another model."""
    if saved.meta["shapes"] != signature(program):
        raise CheckpointError(
            f"{saved.path} was written by another model or optimizer: its variables have other shapes. Use another "
            f"checkpoint folder, or the model that wrote it."
        )
    for name, variable in _variables(program):
        variable.assign(saved.array(name))
    restore_generators({name: saved.array(name) for name in saved.entries if name.startswith("rng/")})


def signature(program: Program) -> list[list[Any]]:
    """Kinds, shapes and types of all variables. Names are left out: Keras numbers layers by process."""
    return [[name, list(variable.shape), str(variable.dtype)] for name, variable in _variables(program)]


def spec_of(batch: Any) -> dict[str, Any]:
    """A batch's tree, shapes and types as JSON: enough to build the model when a run goes on without a batch."""
    tree, leaves = flatten(batch)
    shown = {name: None if leaf is None else [list(leaf.shape), _dtype_name(leaf)] for name, leaf in leaves.items()}
    return {"tree": tree_to_json(tree), "leaves": shown}


def like_spec(spec: dict[str, Any]) -> Any:
    """A batch of zeros with the shapes of the spec, which takes no memory."""

    def leaf(name: str) -> Any:
        found = spec["leaves"][name]
        return None if found is None else np.broadcast_to(np.zeros((), found[1]), found[0])

    return unflatten(tree_from_json(spec["tree"]), leaf)


def _dtype_name(leaf: Any) -> str:
    return str(keras.backend.standardize_dtype(leaf.dtype))


def _variables(program: Program) -> Iterator[tuple[str, Any]]:
    optimizer = program.model.optimizer
    for kind, found in (("weight", program.trainable), ("state", program.state), ("optimizer", optimizer.variables)):
        for i, variable in enumerate(found):
            yield f"{kind}/{i}", variable

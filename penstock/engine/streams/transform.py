"""Maps and filters as functions from block to block, fused so that a block passes all of them in one job.

Covers: calling users' functions on samples and blocks, and collecting what they return.
Does not cover: where the call runs (engine/workers/threads.py, engine/workers/processes.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.block import Block, Column, column_value, to_numpy
from penstock.core.errors import BadData, DataError, MapError
from penstock.core.schema import OBJECT
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.core.tree import Tree, flatten, unflatten
from penstock.engine.prepare.finish import prepared
from penstock.memory.between_rows import check_memory
from penstock.order.permutation import Key, generator
from penstock.plan.prepare import Augment, Mixup, Prepare
from penstock.plan.steps import Filter, Map, MapBatches, Step, function_name


@dataclass(frozen=True)
class Fused:
    """Consecutive maps and filters as one function of a block."""

    steps: tuple[Step, ...]
    batched: bool = False

    def __call__(self, block: Block, key: Key, buffers: Buffers = NEW_MEMORY) -> Block:
        for number, step in enumerate(self.steps):
            if block.nrows == 0 and not self.batched:
                break
            block = _apply(step, block, (*key, number), self.batched, buffers)
        return block

    def on_batch(self, batch: Block, key: Key, buffers: Buffers = NEW_MEMORY) -> Block | None:
        """All steps on one batch as a single element; None if a filter drops it."""
        for number, step in enumerate(self.steps):
            if isinstance(step, Filter):
                if not keep_batch(step, batch, (*key, number)):
                    return None
            else:
                batch = _apply(step, batch, (*key, number, 0), True, buffers)
        return batch

    @property
    def counts_rows(self) -> bool:
        """Whether as many rows come out as go in."""
        return all(isinstance(s, Map) and (s.on_error is None or s.on_error.mode == "raise") for s in self.steps)

    def __str__(self) -> str:
        return " + ".join(step.describe() for step in self.steps)


def _apply(step: Step, block: Block, key: Key, batched: bool, buffers: Buffers) -> Block:
    if isinstance(step, Prepare):
        return prepared(step, block, key, buffers)
    if isinstance(step, MapBatches) or (batched and isinstance(step, Map)):
        return _map_block(step.function, block, key)
    if isinstance(step, Map):
        return _map_samples(step, block, key)
    assert isinstance(step, Filter)
    return _filter_samples(step, block, key)


def call(function: Callable[..., Any], tree: Tree, sample: Any, rng: np.random.Generator | None) -> Any:
    """A tuple's members become arguments, as in tf.data; `rng` is passed to functions that name it."""
    extra = {} if rng is None else {"rng": rng}
    return function(*sample, **extra) if isinstance(tree, tuple) else function(sample, **extra)


def wants_rng(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument called rng: it then gets a generator fixed by seed and place."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def draws(step: Step) -> bool:
    """Whether a step draws random numbers, so that the place of a row matters."""
    return isinstance(step, (Augment, Mixup)) or wants_rng_cached(getattr(step, "function", len))


def keep_batch(step: Filter, batch: Block, key: Key) -> bool:
    """Whether a filter keeps a whole batch."""
    return bool(_called(step.function, batch.tree, _shown(batch), key, lambda: batch.where(0)))


def _map_block(function: Callable[..., Any], block: Block, key: Key) -> Block:
    check_memory()
    # Told only if it is needed: some sources read a whole range again to find where a row was.
    result = _called(function, block.tree, _shown(block), key, lambda: f"a block that starts at {block.where(0)}")
    tree, leaves = flatten(result)
    columns: dict[str, Column] = {name: as_column(value) for name, value in leaves.items()}
    if any(np.ndim(c) == 0 for c in columns.values()):
        raise DataError(f"{function_name(function)} must return arrays with rows along the first axis.")
    same = len(next(iter(columns.values()))) == block.nrows
    return Block(columns, tree, block.origin if same else None)


def _shown(block: Block) -> Any:
    return unflatten(block.tree, lambda name: to_numpy(block.columns[name]))


def _map_samples(step: Map, block: Block, key: Key) -> Block:
    collected: list[dict[str, Any]] = []
    kept: list[int] = []
    tree: Tree = block.tree
    for row in range(block.nrows):
        check_memory()
        try:
            result = _call_row(step.function, block, row, key)
        except MapError as error:
            if step.on_error is None or step.on_error.mode == "raise":
                raise
            step.on_error.bad(BadData(error.where, f"{type(error.__cause__).__name__}: {error.__cause__}"))
            continue
        tree, leaves = flatten(result)
        if collected and leaves.keys() != collected[0].keys():
            raise DataError(
                f"{function_name(step.function)} returned {sorted(leaves)} for {block.where(row)} "
                f"and {sorted(collected[0])} for the samples before it."
            )
        collected.append(leaves)
        kept.append(row)
    if step.on_error is not None:
        step.on_error.good(len(kept))
    if not collected:
        return block.slice(0, 0)
    origin = block.where
    return Block(
        {name: stack([leaves[name] for leaves in collected]) for name in collected[0]},
        tree,
        lambda i: origin(kept[i]),
    )


def _filter_samples(step: Filter, block: Block, key: Key) -> Block:
    keep = []
    for row in range(block.nrows):
        check_memory()
        if _call_row(step.function, block, row, key):
            keep.append(row)
    return block if len(keep) == block.nrows else block.take(np.array(keep, dtype=np.int64))


def _call_row(function: Callable[..., Any], block: Block, row: int, key: Key) -> Any:
    sample = unflatten(block.tree, lambda name: column_value(block.columns[name], row))
    return _called(function, block.tree, sample, (*key, row), lambda: block.where(row))


def _called(function: Callable[..., Any], tree: Tree, sample: Any, key: Key, where: Callable[[], str]) -> Any:
    rng = generator(*key) if wants_rng_cached(function) else None
    try:
        return call(function, tree, sample, rng)
    except Exception as error:
        raise MapError(function_name(function), where(), error) from error


_RNG_WANTED: dict[int, tuple[Any, bool]] = {}


def wants_rng_cached(function: Callable[..., Any]) -> bool:
    """`wants_rng` once per function: reading a signature costs more than most calls."""
    known = _RNG_WANTED.get(id(function))
    if known is None or known[0] is not function:
        if len(_RNG_WANTED) > 256:
            _RNG_WANTED.clear()
        known = _RNG_WANTED[id(function)] = (function, wants_rng(function))
    return known[1]


def as_column(value: Any) -> Column:
    """What a user's function returned for a column, as an array (tensors of any framework on the CPU included)."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)) and value and not np.isscalar(value[0]):
        return stack(list(value))
    return np.asarray(value)


def stack(values: Sequence[Any]) -> np.ndarray:
    """Values of the same kind as one column; of different shapes as an array of arrays."""
    first = values[0]
    if isinstance(first, (str, bytes)) or first is None:
        return _objects(values)
    arrays = [v if isinstance(v, np.ndarray) else np.asarray(v) for v in values]
    if arrays[0].dtype.kind in "US" or any(a.dtype == OBJECT for a in arrays):
        return _objects(values)
    if all(a.shape == arrays[0].shape for a in arrays):
        return np.stack(arrays) if arrays[0].ndim else np.array(arrays)
    return _objects(arrays)


def _objects(values: Sequence[Any]) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        out[index] = value
    return out

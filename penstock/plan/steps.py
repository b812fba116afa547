"""What a user asked for, as inert values: nothing here runs, opens or holds data.

Covers: one frozen class per verb and the node that links them.
Does not cover: their meaning at run time (engine/build.py), the verbs themselves (chain.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from penstock.core.source import OnError, Source

AUTOTUNE = -1
"""Accepted wherever tf.data takes it: the engine always tunes itself."""

Workers = Literal["auto", "thread", "process"]

Kept = Literal["auto", "bytes", "samples"]


@dataclass(frozen=True)
class Step:
    """One verb of a chain."""

    def describe(self) -> str:
        """The verb and its arguments, for plans and signatures (functions by name only)."""
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or value == field.default or isinstance(value, OnError):
                continue
            text = function_name(value) if callable(value) else str(value)
            shown.append(text if field.name in ("function", "source", "size", "count") else f"{field.name}={text}")
        return f"{type(self).__name__.lower()}({', '.join(shown)})"

    def signature(self) -> str:
        """What must not change between a run and its resumption: the verb and its sizes, not its functions."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "workers"}
        sizes = {name: value for name, value in values.items() if isinstance(value, (int, str, tuple))}
        return f"{type(self).__name__}{sizes}"


@dataclass(frozen=True)
class Read(Step):
    """The head of a chain: a dataset on storage."""

    source: Source

    def describe(self) -> str:
        return f"read {self.source.label}"


@dataclass(frozen=True)
class Map(Step):
    """`function` on each element (a sample, or a batch once there are batches)."""

    function: Callable[..., Any]
    workers: Workers = "auto"
    on_error: OnError | None = None


@dataclass(frozen=True)
class MapBatches(Step):
    """`function` on whole blocks: it gets and returns arrays with rows along the first axis."""

    function: Callable[..., Any]
    workers: Workers = "auto"
    rows: int | None = None


@dataclass(frozen=True)
class Filter(Step):
    """Keep the elements for which `function` is true."""

    function: Callable[..., Any]
    workers: Workers = "auto"


@dataclass(frozen=True)
class Batch(Step):
    """`size` elements become one, with rows along a new first axis."""

    size: int
    drop_last: bool = False
    pad: Any = None


@dataclass(frozen=True)
class Unbatch(Step):
    """The inverse of Batch."""


@dataclass(frozen=True)
class Shuffle(Step):
    """A new order every epoch, the same for the same seed. `window` in rows or as a size; `exact`: uniformly random."""

    seed: int
    window: int | str | None = None
    exact: bool = False
    folder: str | None = None

    def signature(self) -> str:
        exact = ", 'exact': True" if self.exact else ""
        window = f", 'window': {self.window!r}" if self.window is not None else ""
        return f"Shuffle{{'seed': {self.seed}{window}{exact}}}"  # where rows are kept changes nothing


@dataclass(frozen=True)
class Repeat(Step):
    """The whole chain again and again; None is for ever."""

    count: int | None = None


@dataclass(frozen=True)
class Take(Step):
    """The first `count` elements."""

    count: int


@dataclass(frozen=True)
class Skip(Step):
    """All but the first `count` elements."""

    count: int


@dataclass(frozen=True)
class Shard(Step):
    """The part of rank `index` out of `world`."""

    index: int
    world: int


@dataclass(frozen=True)
class Cache(Step):
    """Keep what was read and prepared so far, in memory or in a folder; or remote bytes as they are, in a folder."""

    folder: str | None = None
    limit: int | None = None
    what: Kept = "auto"

    def signature(self) -> str:
        return "Cache"  # where it is kept changes nothing


@dataclass(frozen=True)
class Prefetch(Step):
    """A hint that is not needed: the engine always reads ahead within its budget."""

    size: int = AUTOTUNE


@dataclass(frozen=True)
class Concatenate(Step):
    """All elements of each input, one input after the other."""


@dataclass(frozen=True)
class Zip(Step):
    """One element of each input together; ends with the shortest."""


@dataclass(frozen=True)
class SampleFrom(Step):
    """Elements of the inputs in random proportion to `weights`."""

    weights: tuple[float, ...]
    seed: int

    def describe(self) -> str:
        """As the user wrote it."""
        return f"interleave(weights={self.weights}, seed={self.seed})"


@dataclass(frozen=True)
class Interleave(Step):
    """`function` makes a dataset of each element; `cycle` of them are read in turns of `block` elements."""

    function: Callable[..., Any]
    cycle: int = AUTOTUNE
    block: int = 1


@dataclass(frozen=True)
class Node:
    """A step and what it is applied to."""

    step: Step
    inputs: tuple[Node, ...] = ()

    @property
    def input(self) -> Node:
        return self.inputs[0]


def function_name(function: Callable[..., Any]) -> str:
    """How a user would recognise a function."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.replace("<locals>.", "").replace("<lambda>", "lambda")

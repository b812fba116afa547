"""The verbs: each returns a new chain with one inert step more.

Covers: what users write between a reader and a loop, and checking their arguments.
Does not cover: running (engine/), readers (read/), feeds (feed/): penstock/dataset.py puts them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from penstock.core.errors import InvalidInput
from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError, Source
from penstock.plan import steps
from penstock.plan.prepare import Augment, Flip, Layout, Mixup, Values, normalise_step
from penstock.plan.rewrite import batched
from penstock.plan.steps import AUTOTUNE, Kept, Node, Step, Workers


class Chain:
    """A plan under construction. Lazy and immutable: nothing is read before iteration."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @classmethod
    def of(cls, source: Source) -> Self:
        """The chain that only reads a source."""
        return cls(Node(steps.Read(source)))

    def _then(self, step: Step, *others: Chain) -> Self:
        return type(self)(Node(step, (self.node, *(other.node for other in others))))

    def map(
        self,
        function: Callable[..., Any],
        *,
        workers: Workers = "auto",
        on_error: Literal["raise", "skip"] | None = None,
        max_errors: float | None = None,
        num_parallel_calls: int | None = None,
    ) -> Self:
        """Apply `function` to each sample (to each batch after `batch`). A tuple's members become arguments.

        A function with an argument called `rng` gets a NumPy generator fixed by seed, epoch and place.
        `num_parallel_calls` is accepted for tf.data's sake and ignored: the engine tunes itself.
        """
        _callable("map", function)
        policy = None if on_error is None else OnError(on_error, max_errors)
        return self._then(steps.Map(function, _workers(workers), policy))

    def map_batches(self, function: Callable[..., Any], *, rows: int | None = None, workers: Workers = "auto") -> Self:
        """Apply `function` to whole blocks: it gets arrays of many rows and may return more or fewer rows."""
        _callable("map_batches", function)
        return self._then(
            steps.MapBatches(function, _workers(workers), None if rows is None else _count("rows", rows, 1))
        )

    def filter(self, function: Callable[..., Any], *, workers: Workers = "auto") -> Self:
        """Keep the elements for which `function` is true."""
        _callable("filter", function)
        return self._then(steps.Filter(function, _workers(workers)))

    def normalise(
        self,
        *,
        scale: float = 1.0,
        mean: Values = 0.0,
        std: Values = 1.0,
        layout: Layout = "HWC",
        columns: str | Sequence[str] | None = None,
    ) -> Self:
        """x as float32: `(x * scale - mean) / std`, computed while rows are written into their batch.

        `mean` and `std` are a number, one for each channel of a picture or feature of a table, or a dict by column.
        layout="CHW" turns pictures to channels x height x width. `columns` names what to change where samples are
        dicts. Each operation rounds to float32, in this order: NumPy's float32 arithmetic gives the same bits.

        >>> import numpy as np, penstock as ps
        >>> ds = ps.from_tensor_slices(np.array([[0, 255], [51, 102]], np.uint8)).normalise(scale=1 / 255).batch(2)
        >>> [batch.round(2).tolist() for batch in ds]
        [[[0.0, 1.0], [0.20000000298023224, 0.4000000059604645]]]
        """
        return self._then(normalise_step(scale, mean, std, layout, columns))

    def augment(
        self,
        *,
        flip: Flip | None = None,
        crop: float | None = None,
        rotate: float = 0.0,
        colour: float = 0.0,
        cutout: float = 0.0,
        seed: int = 0,
        columns: str | Sequence[str] | None = None,
    ) -> Self:
        """Change each picture at random, in this order, with a generator fixed by seed, epoch and sample.

        `crop` cuts out a window of at least this share of the area and stretches it; `flip` mirrors "horizontal",
        "vertical" or "both", each with probability 1/2; `rotate` turns by up to so many degrees; `colour` changes
        brightness, contrast and saturation by up to this share; `cutout` blanks a square of this share of the side.
        """
        chosen = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
        if batched(self.node):
            raise InvalidInput("augment changes single pictures: call it before batch().")
        changes: dict[str, Any] = {"flip": flip, "crop": crop, "rotate": rotate, "colour": colour, "cutout": cutout}
        return self._then(Augment(columns=chosen, seed=_count("seed", seed, 0), **changes))

    def mixup(self, alpha: float = 0.2, *, classes: int | None = None, seed: int = 0) -> Self:
        """Blend each sample of a batch with another of it, x and y alike, in shares drawn from Beta(alpha, alpha).

        x and y become float32; classes by number become shares of the `classes` that there are.
        """
        if not batched(self.node):
            raise InvalidInput("mixup blends the samples of a batch: call it after batch().")
        number = None if classes is None else _count("classes", classes, 2)
        return self._then(Mixup(alpha=float(alpha), classes=number, seed=_count("seed", seed, 0)))

    def batch(
        self, size: int, drop_last: bool = False, *, pad: Any = None, drop_remainder: bool = False, **ignored: Any
    ) -> Self:
        """Join `size` elements. `pad` (a value, True for 0, or a dict by column) joins rows of different lengths."""
        _only("batch", ignored, "num_parallel_calls", "deterministic")
        return self._then(steps.Batch(_count("batch size", size, 1), drop_last or drop_remainder, pad))

    def unbatch(self) -> Self:
        """Take batches apart again."""
        return self._then(steps.Unbatch())

    def shuffle(
        self,
        buffer_size: int | None = None,
        seed: int = 0,
        *,
        window: Size | None = None,
        exact: bool = False,
        folder: str | os.PathLike[str] | None = None,
        **ignored: Any,
    ) -> Self:
        """A new order every epoch that mixes the whole dataset; `ds.shuffle_quality()` tells how well.

        Rows that can be fetched singly come in a uniformly random order, others in windows of many small pieces from
        all over the data. exact=True makes that order uniformly random too, through a copy of the rows on disk
        (in `folder`) that is written once. `window` is a number of rows or a size such as "64MB"; tf.data's
        `buffer_size` means a window of so many rows.
        """
        _only("shuffle", ignored, "reshuffle_each_iteration")
        if window is None and buffer_size is not None:
            window = buffer_size
        if isinstance(window, str):
            parse_size(window)
        elif window is not None:
            _count("window", window, 1)
        if exact and window is not None:
            raise InvalidInput("shuffle: exact=True has no window; leave window= and buffer_size out.")
        if folder is not None and not exact:
            raise InvalidInput("shuffle: folder= is for the rows of exact=True.")
        return self._then(steps.Shuffle(int(seed), window, exact, None if folder is None else os.fspath(folder)))

    def repeat(self, count: int | None = None) -> Self:
        """The whole chain `count` times, or for ever; shuffled anew each time."""
        return self._then(steps.Repeat(None if count is None or count < 0 else count))

    def take(self, count: int) -> Self:
        """The first `count` elements."""
        return self._then(steps.Take(_count("take", count, 0)))

    def skip(self, count: int) -> Self:
        """All but the first `count` elements."""
        return self._then(steps.Skip(_count("skip", count, 0)))

    def shard(self, index: int, world: int) -> Self:
        """The part of rank `index` of `world`: together the ranks see every element exactly once."""
        _count("world", world, 1)
        if not 0 <= index < world:
            raise InvalidInput(f"shard: rank {index} is not one of 0..{world - 1}.")
        return self._then(steps.Shard(index, world))

    def prefetch(self, size: int = AUTOTUNE) -> Self:
        """Accepted for tf.data's sake: the engine always reads ahead within the budget."""
        return self._then(steps.Prefetch(size))

    def cache(
        self, folder: str | os.PathLike[str] | None = None, *, limit: Size | None = None, what: Kept = "auto"
    ) -> Self:
        """Keep what comes out here: in memory under the budget, or in `folder` up to `limit` bytes.

        Behind maps and filters that is prepared samples. Right behind a reader of remote files, `folder` keeps their
        bytes as the store has them; what="samples" keeps decoded samples there too, what="bytes" insists on bytes.
        """
        if what not in ("auto", "bytes", "samples"):
            raise InvalidInput(f"cache: what must be 'auto', 'bytes' or 'samples', not {what!r}.")
        if what == "bytes" and folder is None:
            raise InvalidInput("cache: what='bytes' needs a folder: bytes are kept on disk.")
        nbytes = None if limit is None else parse_size(limit)
        return self._then(steps.Cache(None if folder is None else os.fspath(folder), nbytes, what))

    def concatenate(self, *others: Chain) -> Self:
        """All elements of this dataset, then those of the others."""
        return self._then(steps.Concatenate(), *_chains("concatenate", others))

    def zip(self, *others: Chain) -> Self:
        """Tuples of one element from each dataset; ends with the shortest."""
        return self._then(steps.Zip(), *_chains("zip", others))

    def interleave(
        self,
        other: Callable[..., Any] | Chain | Sequence[Chain],
        cycle_length: int = AUTOTUNE,
        block_length: int = 1,
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        **ignored: Any,
    ) -> Self:
        """Mix with other datasets at random by `weights`, or open a dataset per element and read them in turns."""
        _only("interleave", ignored, "num_parallel_calls", "deterministic")
        if callable(other) and not isinstance(other, Chain):
            cycle = cycle_length if cycle_length == AUTOTUNE else _count("cycle_length", cycle_length, 1)
            return self._then(steps.Interleave(other, cycle, _count("block_length", block_length, 1)))
        others = _chains("interleave", [other] if isinstance(other, Chain) else other)
        shares = [1.0] * (1 + len(others)) if weights is None else [float(w) for w in weights]
        if len(shares) != 1 + len(others) or min(shares) < 0 or sum(shares) <= 0:
            raise InvalidInput(f"interleave: {1 + len(others)} weights of at least 0 are needed, not {list(shares)}.")
        return self._then(steps.SampleFrom(tuple(shares), seed), *others)


def _callable(verb: str, function: object) -> None:
    if not callable(function):
        raise InvalidInput(f"{verb} needs a function, not {type(function).__name__}.")


def _workers(workers: str) -> Any:
    if workers not in ("auto", "thread", "process"):
        raise InvalidInput(f"workers must be 'auto', 'thread' or 'process', not {workers!r}.")
    return workers


def _count(what: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise InvalidInput(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def _only(verb: str, given: dict[str, Any], *known: str) -> None:
    """tf.data's tuning arguments are accepted and ignored; anything else is a mistake worth telling."""
    for name in given:
        if name not in known:
            raise InvalidInput(f"{verb} has no argument {name!r}.")


def _chains(verb: str, others: Any) -> list[Chain]:
    found = list(others)
    for other in found:
        if not isinstance(other, Chain):
            raise InvalidInput(f"{verb} needs datasets, not {type(other).__name__}.")
    if not found:
        raise InvalidInput(f"{verb} needs at least one other dataset.")
    return found

"""The dataset that users hold: a chain of steps that can be looked at, run and resumed.

Covers: iteration, positions, schema, length, explaining, and the doors to frameworks.
Does not cover: the verbs (plan/chain.py), running (engine/), conversions (feed/).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.errors import InvalidInput, PositionError
from penstock.core.schema import Schema, schema_of
from penstock.core.sizes import Size
from penstock.core.world import find_world
from penstock.engine.build import Builder
from penstock.engine.explain import explain
from penstock.engine.mixing import ShuffleQuality
from penstock.engine.pipe import pipe
from penstock.engine.prepare.columns import prepared_schema
from penstock.engine.quality import shuffle_quality, tell
from penstock.engine.run import Run, StreamIterator
from penstock.engine.single_rank import as_only_rank
from penstock.engine.streams.stream import Stream
from penstock.feed.epochs import EpochNumbers
from penstock.order.elastic import merge
from penstock.order.position import Position, read_position, write_position
from penstock.order.sides import side_of
from penstock.plan.chain import Chain
from penstock.plan.elastic import why_not_elastic
from penstock.plan.length import length
from penstock.plan.prepare import Augment, Normalise
from penstock.plan.ranks import divided, without_shards
from penstock.plan.rewrite import batched, for_preview, rewrite
from penstock.plan.show import show
from penstock.plan.steps import Batch, Node, Read, Shard

if TYPE_CHECKING:
    import tensorflow as tf

    from penstock.feed.jax import JaxFeed
    from penstock.feed.keras import KerasFeed
    from penstock.feed.torch import TorchFeed
    from penstock.write.report import WriteReport


class Dataset(Chain):
    """Samples of any number, streamed under the process's memory limit.

    Iterate it, or hand it to a framework. Each `iter()` is the next epoch; `resume` starts in the middle of one.

    >>> import penstock as ps
    >>> ds = ps.from_tensor_slices([1, 2, 3, 4, 5]).map(lambda x: x * 10).batch(2)
    >>> [batch.tolist() for batch in ds]
    [[10, 20], [30, 40], [50]]
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.epochs = EpochNumbers()
        self._start: Position | None = None
        self._schema: Schema | None = None
        self._looked_at = False

    def __iter__(self) -> StreamIterator:
        start, self._start = self._start, None
        epoch = self.epochs.take()
        state = None if start is None else start["state"]
        placed = self._placed(start)
        shard = _shard_of(placed)
        node = rewrite(placed)
        inner = None if state is None else state["in"]
        first, self._looked_at = not self._looked_at, True
        context, running = pipe().open()
        context.sharded = shard is not None

        def build() -> Stream:
            if first:
                tell(node)
            return Builder(context).build(node, inner, (epoch,))

        run = Run(context, build, lambda: pipe().close(running))
        running.run = weakref.ref(run)

        def describe(now: Any, done: int) -> Position:
            where = write_position(
                plan=self._signature(),
                data=self._fingerprint(),
                epoch=epoch,
                done=done,
                state=now,
                batch=(self._signature(sized=False), self._batch()),
            )
            return where if shard is None else {**where, "shard": [shard.index, shard.world]}

        return StreamIterator(run, state, describe, 0 if start is None else start["done"])

    def resume(self, position: Position | str | Sequence[Position | str]) -> Dataset:
        """The same dataset, whose first iteration continues right after `position`.

        Give the positions of all ranks, in any order, when the number of ranks has changed.
        """
        if not isinstance(position, (str, dict)):
            return self._resumed(self._merged(list(position)))
        found = self._checked(position)
        taken, now = found.get("shard"), _shard_of(self._placed(found))
        if taken is None and now is not None:
            return self._resumed(self._merged([position]))
        if taken is not None and now is not None and tuple(taken) != (now.index, now.world):
            if taken[1] == now.world:
                raise PositionError(f"The position is that of rank {taken[0]}; this is rank {now.index}.")
            raise PositionError(
                f"The position was taken by one of {taken[1]} ranks; now there are {now.world}. "
                "Give resume() the positions of all old ranks."
            )
        return self._resumed(found)

    def _merged(self, positions: list[Position | str]) -> Position:
        checked = [self._checked(p, resized=True) for p in positions]
        if len(checked) == 1 and "shard" not in checked[0]:
            checked = [as_only_rank(checked[0], rewrite(without_shards(self.node)))]
        placed = self._placed(checked[0] if checked else None)
        shard = _shard_of(placed)
        if shard is None:
            raise PositionError("Several positions can only be resumed by a dataset divided with shard(i, n).")
        reason = why_not_elastic(rewrite(placed))
        if reason is not None:
            raise PositionError(
                f"The number of ranks cannot change in this chain, because {reason}. "
                "Call shard right after reading and shuffling, or resume with as many ranks as before."
            )
        return {**merge(checked, shard.index, shard.world), "shard": [shard.index, shard.world]}

    def _checked(self, position: Position | str, *, resized: bool = False) -> Position:
        return read_position(
            position,
            plan=self._signature(),
            data=self._fingerprint(),
            unsized=self._signature(sized=False) if resized else None,
        )

    def _resumed(self, position: Position) -> Dataset:
        again = Dataset(self.node)
        again._start = position
        again.epochs = EpochNumbers(position["epoch"])
        return again

    @property
    def resuming(self) -> bool:
        """Whether the next pass begins in the middle of an epoch."""
        return self._start is not None

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Two datasets that share no row and together have all: about `fraction` of the rows, and the rest.

        Which rows depends on the data and the seed alone: not on shuffles, epochs, memory, processes or the machine.
        Nothing is read for it and nothing remembered. See docs/readers.md for what happens when files are added.

        >>> import penstock as ps
        >>> train, test = ps.from_tensor_slices(list(range(100))).shuffle(seed=1).split(0.8, seed=7)
        >>> len(train), len(test)
        (80, 20)
        """
        if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise InvalidInput(f"split: the fraction must lie between 0 and 1, not {fraction!r}.")
        share = 1 - fraction
        return Dataset(side_of(self.node, share, "train", seed)), Dataset(side_of(self.node, share, "val", seed))

    def at_epoch(self, epoch: int) -> Dataset:
        """The same dataset, whose next pass is the given epoch (counted from 0)."""
        if epoch < 0:
            raise InvalidInput(f"Epochs are counted from 0; {epoch} is not one.")
        again = Dataset(self.node)
        again.epochs = EpochNumbers(epoch)
        return again

    @property
    def schema(self) -> Schema:
        """Names, dtypes and shapes of one element. After a function, one element is read to find out."""
        if self._schema is None:
            known = _known_schema(self.node)
            self._schema = schema_of(self.peek()) if known is None else known
        return self._schema

    def peek(self) -> Any:
        """One element, without using up an epoch."""
        look = Dataset(for_preview(divided(self.node, 0, 1)))  # of the whole: a rank may have no rows
        look._looked_at = True  # how that would mix is nobody's concern
        with iter(look) as once:
            for element in once:
                return element
        raise PositionError("The dataset is empty.")

    @property
    def classes(self) -> list[str]:
        """Names of the classes, where the source has them."""
        for source in self._sources():
            found = getattr(source, "classes", None)
            if found is not None:
                return list(found)
        raise AttributeError("This dataset has no classes.")

    def __len__(self) -> int:
        n = length(self._placed())
        if n is None:
            raise TypeError("The number of elements is not known before reading; use `ds.cardinality` (None here).")
        return n

    def __bool__(self) -> bool:
        return True

    @property
    def cardinality(self) -> int | None:
        """The number of elements (of this rank's part), or None where only reading tells."""
        return length(self._placed())

    def __repr__(self) -> str:
        return show(self.node)

    def explain(self) -> str:
        """The plan as it will run, with the bytes each stage may hold."""
        return explain(rewrite(self._placed()))

    def shuffle_quality(self, rows: int = 100_000) -> ShuffleQuality:
        """How well the order of the first epoch mixes, against a uniform shuffle: see docs/shuffle.md."""
        return shuffle_quality(rewrite(self.node), rows)

    def torch(self, device: Any = None) -> TorchFeed:
        """An IterableDataset of tensors over the same memory, also for `DataLoader(ds.torch(), batch_size=None)`."""
        from penstock.feed.torch import TorchFeed

        return TorchFeed(self._ranked(), device)  # a loader's workers would not find the rank by themselves

    def tensorflow(self, element_spec: Any = None) -> tf.data.Dataset:
        """A tf.data.Dataset over the same memory; a plain loop over it takes batches without tf.data.

        `element_spec` replaces the one that is found by itself.
        """
        from penstock.feed.tensorflow.door import tensorflow_feed

        return tensorflow_feed(self, element_spec)

    def jax(self, sharding: Any = None) -> JaxFeed:
        """An iterable of JAX arrays, put on a device or divided as `sharding` says."""
        from penstock.feed.jax import JaxFeed

        return JaxFeed(self, sharding)

    def keras(self, class_weight: dict[int, float] | None = None) -> KerasFeed:
        """What `model.fit`, `evaluate` and `predict` take, on any backend of Keras.

        Weights of classes are given here: Keras ignores its own `class_weight=` for data that comes this way.
        """
        from penstock.feed.keras import KerasFeed

        return KerasFeed(self, class_weight)

    def write(
        self,
        folder: str | os.PathLike[str],
        format: Literal["parquet", "webdataset", "tfrecord"] = "parquet",
        *,
        shard_size: Size = "256MB",
        size: int | tuple[int, int] | None = None,
        quality: int = 95,
        lossless: bool = False,
        overwrite: bool = False,
        shuffle: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> WriteReport:
        """Write all rows as shards of about `shard_size` bytes; the same call again goes on after a kill.

        `shuffle` is a seed: rows are written in a uniformly random order, through a row store on disk where the source
        needs one (as much space as the rows take). After that, any tool's shuffle by windows is as good as exact.

        8-bit images are stored as JPEG of the given quality, or as PNG if `lossless`; `size` resizes them first.
        Batches are taken apart. `progress` is called with the rows and bytes written so far.
        """
        from penstock.write import write
        from penstock.write.encode import BlockEncoder

        side = (size, size) if isinstance(size, int) else size
        encoder = BlockEncoder(format, quality, lossless, side)
        return write(
            Dataset(self.node), folder, encoder=encoder, shard_size=shard_size, overwrite=overwrite, shuffle=shuffle,
            progress=progress,
        )  # fmt: skip

    def identity(self) -> dict[str, str]:
        """What a position must agree with: the steps of the chain, and the data."""
        return {"plan": self._signature(), "data": self._fingerprint()}

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": _pickled(self.node), "epochs": self.epochs, "start": self._start, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(pickle.loads(state["plan"]))  # type: ignore[misc]
        self.epochs, self._start, self._schema = state["epochs"], state["start"], state["schema"]

    def _placed(self, start: Position | None = None) -> Node:
        """The chain of this rank: divided by itself where several processes train together and the user has not.

        What was begun by ranks is gone on with by ranks, even if only one is left.
        """
        world = find_world()
        if world.size > 1 or (start is not None and "shard" in start):
            return divided(self.node, world.rank, world.size)
        return self.node

    def _ranked(self) -> Dataset:
        """This dataset, with its rank written into the chain."""
        placed = self._placed(self._start)
        if placed is self.node:
            return self
        mine = Dataset(placed)
        mine.epochs, mine._start, mine._schema = self.epochs, self._start, self._schema
        return mine

    def _sources(self) -> Iterator[Any]:
        return (node.step.source for node in _walk(self.node) if isinstance(node.step, Read))

    def _signature(self, *, sized: bool = True) -> str:
        """Identifies steps and sizes, not functions and not the rank: those may change between runs.

        Ranks that divide a step among more or fewer of them have batches of other sizes: `sized` leaves those out.
        """
        steps = [node.step for node in _walk(self.node) if not isinstance(node.step, Shard)]
        found = [step if sized or not isinstance(step, Batch) else replace(step, size=0) for step in steps]
        return _digest("\n".join(step.signature() for step in found))

    def _batch(self) -> int:
        """Rows of a batch at the end of the chain; 1 where there are none."""
        return next((node.step.size for node in _walk(self.node) if isinstance(node.step, Batch)), 1)

    def _fingerprint(self) -> str:
        if not hasattr(self, "_data"):
            self._data = _digest("\n".join(source.fingerprint() for source in self._sources()))
        return self._data


def _known_schema(node: Node) -> Schema | None:
    """What a source and steps that the engine knows give, without reading; None where only an element tells."""
    if isinstance(node.step, Read):
        return node.step.source.schema()
    if isinstance(node.step, (Normalise, Augment)) and not batched(node.input):
        below = _known_schema(node.input)
        return None if below is None else prepared_schema(node.step, below)
    return None


def _shard_of(node: Node) -> Shard | None:
    found = [n.step for n in _walk(node) if isinstance(n.step, Shard)]
    return found[0] if found else None


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.inputs:
        yield from _walk(child)


def _pickled(node: Node) -> bytes:
    """A plan as bytes. Functions that pickle cannot name, such as lambdas, are written out."""
    try:
        return pickle.dumps(node)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle  # only then: it is slower and its bytes are tied to the version of Python

        return bytes(cloudpickle.dumps(node))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

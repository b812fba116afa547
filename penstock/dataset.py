"""The dataset that users hold: a chain of steps that can be looked at, run and resumed.

Covers: iteration, positions, schema, length, explaining, and the doors to frameworks.
Does not cover: the verbs (plan/chain.py), running (engine/), conversions (feed/).
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.errors import InvalidInput, PositionError
from penstock.core.schema import Schema, schema_of
from penstock.core.sizes import Size
from penstock.engine.build import Builder
from penstock.engine.explain import explain
from penstock.engine.pipe import pipe
from penstock.engine.quality import ShuffleQuality, shuffle_quality
from penstock.engine.run import Run, StreamIterator
from penstock.feed.epochs import Epochs
from penstock.order.position import Position, merge, read_position, write_position
from penstock.plan.chain import Chain
from penstock.plan.length import length
from penstock.plan.rewrite import rewrite
from penstock.plan.show import show
from penstock.plan.steps import Node, Read, Shard

if TYPE_CHECKING:
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
        self.epochs = Epochs()
        self._start: Position | None = None
        self._schema: Schema | None = None

    def __iter__(self) -> StreamIterator:
        start, self._start = self._start, None
        epoch = self.epochs.take()
        state = None if start is None else start["state"]
        context, running = pipe().open()
        shard = self._shard()
        context.sharded = shard is not None
        node = rewrite(self.node)
        inner = None if state is None else state["in"]
        run = Run(context, lambda: Builder(context).build(node, inner, (epoch,)), lambda: pipe().close(running))

        def describe(now: Any, done: int) -> Position:
            where = write_position(plan=self._signature(), data=self._fingerprint(), epoch=epoch, done=done, state=now)
            return where if shard is None else {**where, "shard": [shard.index, shard.world]}

        return StreamIterator(run, state, describe, 0 if start is None else start["done"])

    def resume(self, position: Position | str | Sequence[Position | str]) -> Dataset:
        """The same dataset, whose first iteration continues right after `position`.

        Give the positions of all ranks, in any order, when the number of ranks has changed.
        """
        if not isinstance(position, (str, dict)):
            return self._resumed(self._merged(list(position)))
        found = self._checked(position)
        taken, now = found.get("shard"), self._shard()
        if taken is not None and now is not None and tuple(taken) != (now.index, now.world):
            if taken[1] == now.world:
                raise PositionError(f"The position is that of rank {taken[0]}; this is rank {now.index}.")
            raise PositionError(
                f"The position was taken by one of {taken[1]} ranks; now there are {now.world}. "
                "Give resume() the positions of all old ranks."
            )
        return self._resumed(found)

    def _merged(self, positions: list[Position | str]) -> Position:
        shard = self._shard()
        if shard is None:
            raise PositionError("Several positions can only be resumed by a dataset divided with shard(i, n).")
        return merge([self._checked(p) for p in positions], shard.index, shard.world)

    def _checked(self, position: Position | str) -> Position:
        return read_position(position, plan=self._signature(), data=self._fingerprint())

    def _resumed(self, position: Position) -> Dataset:
        again = Dataset(self.node)
        again._start = position
        again.epochs = Epochs(position["epoch"])
        return again

    @property
    def resuming(self) -> bool:
        """Whether the next pass begins in the middle of an epoch."""
        return self._start is not None

    def at_epoch(self, epoch: int) -> Dataset:
        """The same dataset, whose next pass is the given epoch (counted from 0)."""
        if epoch < 0:
            raise InvalidInput(f"Epochs are counted from 0; {epoch} is not one.")
        again = Dataset(self.node)
        again.epochs = Epochs(epoch)
        return again

    @property
    def schema(self) -> Schema:
        """Names, dtypes and shapes of one element. After a function, one element is read to find out."""
        if self._schema is None:
            if isinstance(self.node.step, Read):
                self._schema = self.node.step.source.schema()
            else:
                self._schema = schema_of(self.peek())
        return self._schema

    def peek(self) -> Any:
        """One element, without using up an epoch."""
        with iter(Dataset(self.node)) as once:
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
        n = length(self.node)
        if n is None:
            raise TypeError("The number of elements is not known before reading; use `ds.cardinality` (None here).")
        return n

    def __bool__(self) -> bool:
        return True

    @property
    def cardinality(self) -> int | None:
        """The number of elements, or None where only reading tells."""
        return length(self.node)

    def __repr__(self) -> str:
        return show(self.node)

    def explain(self) -> str:
        """The plan as it will run, with the bytes each stage may hold."""
        return explain(rewrite(self.node))

    def shuffle_quality(self, rows: int = 100_000) -> ShuffleQuality:
        """How close the order of the first epoch is to a uniform shuffle, measured."""
        return shuffle_quality(rewrite(self.node), rows)

    def torch(self, device: Any = None) -> Any:
        """An IterableDataset of tensors over the same memory, also for `DataLoader(ds.torch(), batch_size=None)`."""
        from penstock.feed.torch import TorchFeed

        return TorchFeed(self, device)

    def tensorflow(self, element_spec: Any = None) -> Any:
        """A tf.data.Dataset over the same memory. `element_spec` replaces the one that is found by itself."""
        from penstock.feed.tensorflow import tensorflow_feed

        return tensorflow_feed(self, element_spec)

    def jax(self, sharding: Any = None) -> Any:
        """An iterable of JAX arrays, put on a device or divided as `sharding` says."""
        from penstock.feed.jax import JaxFeed

        return JaxFeed(self, sharding)

    def keras(self, class_weight: dict[int, float] | None = None) -> Any:
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
        progress: Callable[[int, int], None] | None = None,
    ) -> WriteReport:
        """Write all rows as shards of about `shard_size` bytes; the same call again goes on after a kill.

        8-bit images are stored as JPEG of the given quality, or as PNG if `lossless`; `size` resizes them first.
        Batches are taken apart. `progress` is called with the rows and bytes written so far.
        """
        from penstock.write import write
        from penstock.write.encode import Encoder

        side = (size, size) if isinstance(size, int) else size
        encoder = Encoder(format, quality, lossless, side)
        return write(
            Dataset(self.node), folder, encoder=encoder, shard_size=shard_size, overwrite=overwrite, progress=progress
        )

    def identity(self) -> dict[str, str]:
        """What a position must agree with: the steps of the chain, and the data."""
        return {"plan": self._signature(), "data": self._fingerprint()}

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": _pickled(self.node), "epochs": self.epochs, "start": self._start, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(pickle.loads(state["plan"]))  # type: ignore[misc]
        self.epochs, self._start, self._schema = state["epochs"], state["start"], state["schema"]

    def _shard(self) -> Shard | None:
        found = [node.step for node in _walk(self.node) if isinstance(node.step, Shard)]
        return found[0] if found else None

    def _sources(self) -> Iterator[Any]:
        return (node.step.source for node in _walk(self.node) if isinstance(node.step, Read))

    def _signature(self) -> str:
        """Identifies steps and sizes, not functions and not the rank: those may change between runs."""
        return _digest("\n".join(node.step.signature() for node in _walk(self.node)))

    def _fingerprint(self) -> str:
        if not hasattr(self, "_data"):
            self._data = _digest("\n".join(source.fingerprint() for source in self._sources()))
        return self._data


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

"""What `ds.tensorflow()` returns: a tf.data.Dataset that a plain loop reads without tf.data.

Covers: the dataset, cardinality, options, and an iterator that is both Python's and TensorFlow's.
Does not cover: tensors over batch buffers (leaves.py), the way into graphs (queue.py).

A loop `for x, y in ds.tensorflow()` takes each batch through DLPack: microseconds. Whatever needs a graph (`.map`,
`model.fit`, `next(iterator)` inside a tf.function, strategies) takes the same stream through a queue. Which of the two
it is shows only when the iterator is first used, so it becomes one of TensorFlow's when TensorFlow asks for its handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.errors import MissingExtra
from penstock.core.tree import map_leaves
from penstock.engine.run import StreamIterator
from penstock.feed.convert import Streamed
from penstock.feed.spec import endless, made_together, sharded
from penstock.feed.tensorflow.leaves import spec_of, to_group, to_group_of_one, to_tensor
from penstock.feed.tensorflow.queue import grouped_dataset, queue_dataset

try:
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops, iterator_ops
except ImportError as error:
    raise MissingExtra(what="ds.tensorflow()", extra="tensorflow") from error

Change = Callable[[Any], Any]


def tensorflow_feed(dataset: Streamed, element_spec: Any = None, change: Change = lambda element: element) -> Any:
    """The dataset as a tf.data.Dataset, with `change` made to each element. Each pass over it is the next epoch."""
    spec = element_spec if element_spec is not None else spec_of(dataset)

    made = _in_graphs(lambda: iter(dataset), spec, change, dataset)
    count = _cardinality(dataset)
    if count is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(count))
    return _Door(made.with_options(_options(dataset)), lambda: _Pass(dataset, spec, change, made))


def _in_graphs(begin: Callable[[], StreamIterator], spec: Any, change: Change, dataset: Streamed) -> Any:
    """The way into graphs for the passes that `begin` starts."""
    convert = _groups if made_together(dataset) else _tensors
    way = grouped_dataset if convert is _groups else queue_dataset

    def elements() -> Iterator[Any]:
        with begin() as stream:
            yield from convert(stream, change)

    return way(elements, spec)


def _tensors(stream: StreamIterator, change: Change) -> Iterator[Any]:
    for element in stream:
        yield map_leaves(change(element), to_tensor)


def _groups(stream: StreamIterator, change: Change) -> Iterator[Any]:
    """Elements along a new first axis: the batches that were made together, where small ones were."""
    while True:
        try:
            found = stream.next_together()
            if found is None:
                yield map_leaves(change(next(stream)), to_group_of_one)
                continue
        except StopIteration:
            return
        rows, count = found
        del found  # while the next ones are waited for, nothing here keeps these
        rows = change(rows)
        yield map_leaves(rows, lambda leaf, count=count: to_group(leaf, count))  # type: ignore[misc]
        del rows


class _Door(dataset_ops.UnaryUnchangedStructureDataset):  # type: ignore[misc]
    """A tf.data.Dataset whose plain loops are ours."""

    def __init__(self, inner: Any, begin: Callable[[], _Pass]) -> None:
        self._begin = begin
        super().__init__(inner, inner._variant_tensor)

    def __iter__(self) -> Any:
        return self._begin() if tf.executing_eagerly() else super().__iter__()


class _Pass(iterator_ops.OwnedIterator):  # type: ignore[misc]
    """A pass: tensors by DLPack as long as only Python asks, an iterator of TensorFlow from the moment a graph does."""

    def __init__(self, dataset: Streamed, spec: Any, change: Change, graph: Any) -> None:
        # The parent's __init__ would start the graph's way; it runs when that is asked for.
        self._data, self._element_spec, self._change, self._graph = dataset, spec, change, graph
        self._stream: StreamIterator | None = None
        self._get_next_call_count = 0

    def __next__(self) -> Any:
        if "_iterator_resource" in self.__dict__ or not tf.executing_eagerly():
            return super().__next__()
        if self._stream is None:
            self._stream = iter(self._data)
        return map_leaves(self._change(next(self._stream)), to_tensor)

    def get_next(self) -> Any:
        """As the parent's: the next element, or TensorFlow's own error at the end."""
        if "_iterator_resource" in self.__dict__ or not tf.executing_eagerly():
            return super().get_next()
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def __getattr__(self, name: str) -> Any:
        # Asked for what only the parent's __init__ makes: TensorFlow wants a handle.
        if name not in ("_iterator_resource", "_dataset", "_flat_output_types", "_flat_output_shapes"):
            raise AttributeError(name)
        super().__init__(self._graph if self._stream is None else self._rest(self._stream))
        return self.__dict__[name]

    def _rest(self, stream: StreamIterator) -> Any:
        """What a loop has left of the pass, for a graph. It must not refer to this iterator: dropping that ends it."""
        return _in_graphs(lambda: stream, self._element_spec, self._change, self._data)

    def close(self) -> None:
        """Stop now; dropping the iterator does the same."""
        if self._stream is not None:
            self._stream.close()

    @property
    def position(self) -> dict[str, Any]:
        """Where a plain loop stands: give it to `ds.resume` to continue with the next element."""
        if self._stream is None:
            self._stream = iter(self._data)
        return self._stream.position


def _cardinality(dataset: Streamed) -> int | None:
    if dataset.resuming:
        return None  # the first pass is shorter than those after it
    return int(tf.data.INFINITE_CARDINALITY) if endless(dataset.node) else dataset.cardinality


def _options(dataset: Streamed) -> Any:
    options = tf.data.Options()
    if sharded(dataset.node):
        # Already a rank's part: dividing it again among workers would lose rows.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options

"""Hand-over to TensorFlow as a tf.data.Dataset.

Covers: the element spec, cardinality, and elements over batch buffers.
Does not cover: what is known of elements beforehand (feed/spec.py).

TensorFlow takes a NumPy array that a Python function of its graph returns as it is if the array begins at a multiple
of 64 bytes, as batch buffers do, and lets go of it later: measured 0.4 ms of processor time an element
against 4.7 ms with a copy, for 4.8 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.core.tree import unflatten
from penstock.feed.convert import Streamed, map_leaves, numeric
from penstock.feed.spec import Leaf, endless, leaves_of, sharded

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra(what="ds.tensorflow()", extra="tensorflow") from error


def to_array(value: Any) -> Any:
    """A leaf as TensorFlow's Python functions return it: numbers as they are, text as objects."""
    array = numeric(value)
    if array is not None:
        return array
    texts = np.asarray(value, dtype=object)
    if any(isinstance(v, np.ndarray) for v in texts.flat):
        raise InvalidInput("Rows of different shapes cannot be one tensor. Pad them: batch(n, pad=0).")
    # TensorFlow cannot hold a missing text: it becomes an empty one.
    missing = [v is None for v in texts.flat]
    return np.where(np.reshape(missing, texts.shape), "", texts) if any(missing) else texts


def tensorflow_feed(
    dataset: Streamed, element_spec: Any = None, change: Callable[[Any], Any] = lambda element: element
) -> Any:
    """The dataset as a tf.data.Dataset, with `change` made to each element. Each pass over it is the next epoch."""
    spec = element_spec if element_spec is not None else spec_of(dataset)

    def elements() -> Iterator[Any]:
        with iter(dataset) as stream:
            for element in stream:
                yield map_leaves(change(element), to_array)

    made = tf.data.Dataset.from_generator(elements, output_signature=spec)
    count = _cardinality(dataset)
    if count is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(count))
    # One element ahead: its conversion then overlaps with the step, and no more batches are held.
    return made.prefetch(1).with_options(_options(dataset))


def spec_of(dataset: Streamed) -> Any:
    """The element spec that can be told beforehand."""
    leaves = leaves_of(dataset)
    return unflatten(dataset.schema.tree, lambda name: _tensor_spec(leaves[name]))


def vector_spec(dtype: str) -> Any:
    """The spec of one number for each row."""
    return tf.TensorSpec((None,), tf.as_dtype(dtype))


def _tensor_spec(leaf: Leaf) -> Any:
    dtype = tf.string if leaf.dtype is None else tf.as_dtype(leaf.dtype)
    return tf.TensorSpec(leaf.shape, dtype)


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

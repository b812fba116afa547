"""One leaf of an element, from NumPy to TensorFlow.

Covers: tensors over the memory of batches, text, and the element spec.
Does not cover: iterating (door.py, queue.py), what is known of elements beforehand (feed/spec.py).

DLPack takes 3 microseconds for any size and keeps the array alive with the tensor; `tf.constant` copies: 6 ms for
4.8 MB. TensorFlow takes memory from DLPack wherever it begins, but its kernels may assume 64 bytes: what begins
elsewhere is copied to a place that does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.core.tree import unflatten
from penstock.feed.convert import Streamed, aligned, numeric
from penstock.feed.spec import Leaf, leaves_of

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra(what="ds.tensorflow()", extra="tensorflow") from error

_SHARED = frozenset("biufc")
"""Kinds of numbers that DLPack carries."""


def to_tensor(value: Any) -> Any:
    """A leaf as a tensor, over the same memory where that is possible."""
    return _tensor(to_array(value))


def _tensor(array: Any) -> Any:
    if array.dtype.kind not in _SHARED or array.ndim == 0 or array.size == 0:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(aligned(array).__dlpack__())


def to_group(rows: Any, count: int) -> Any:
    """A leaf of the rows of several batches as one tensor, whose first axis are the batches."""
    array = to_array(rows)
    return _tensor(array.reshape(count, -1, *array.shape[1:]))


def to_group_of_one(value: Any) -> Any:
    """A leaf as a tensor with a first axis of one."""
    return _tensor(to_array(value)[None])


def to_array(value: Any) -> Any:
    """A leaf as TensorFlow takes it: numbers as they are, text as objects."""
    array = numeric(value)
    if array is not None:
        return array
    texts = np.asarray(value, dtype=object)
    if any(isinstance(v, np.ndarray) for v in texts.flat):
        raise InvalidInput("Rows of different shapes cannot be one tensor. Pad them: batch(n, pad=0).")
    # TensorFlow cannot hold a missing text: it becomes an empty one.
    missing = [v is None for v in texts.flat]
    return np.where(np.reshape(missing, texts.shape), "", texts) if any(missing) else texts


def spec_of(dataset: Streamed) -> Any:
    """The element spec, as far as it is known beforehand."""
    leaves = leaves_of(dataset)
    return unflatten(dataset.schema.tree, lambda name: _tensor_spec(leaves[name]))


def vector_spec(dtype: str) -> Any:
    """The spec of one number for each row."""
    return tf.TensorSpec((None,), tf.as_dtype(dtype))


def _tensor_spec(leaf: Leaf) -> Any:
    dtype = tf.string if leaf.dtype is None else tf.as_dtype(leaf.dtype)
    return tf.TensorSpec(leaf.shape, dtype)

"""The way of elements into TensorFlow's graphs: a queue that a thread of ours fills and tf.data empties.

Covers: one pass of a dataset as a tf.data.Dataset; its start, its end, errors, and being dropped in the middle.
Does not cover: plain loops, which need no graph (door.py).

`Dataset.from_generator` calls Python for every element from one of TensorFlow's threads, about a millisecond each time
whatever its size. Here Python puts tensors into a queue of TensorFlow (by reference) and tf.data takes them out
without Python: 0.5 ms of processor time against 0.8 ms, of which most is tf.data's own, and half the wall time.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.core.errors import MissingExtra
from penstock.core.events import fell_back

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra(what="ds.tensorflow()", extra="tensorflow") from error

_AHEAD = 1
"""Groups that wait in the queue: conversion overlaps with the step, and no more batches are held."""


def queue_dataset(elements: Callable[[], Iterator[Any]], spec: Any) -> Any:
    """A tf.data.Dataset, each pass of which takes the tensors of a new `elements()`, on a thread of its own."""
    passes = _Passes(elements, spec)
    try:
        from tensorflow.python.data.ops.from_generator_op import _GeneratorDataset
    except ImportError:  # another TensorFlow: the public way
        fell_back("TensorFlow", "its generator dataset has moved, so elements go through from_generator")
        return tf.data.Dataset.from_generator(elements, output_signature=spec)
    made = _GeneratorDataset(
        tf.constant(0, tf.int64), passes.begin, passes.take, passes.end, output_signature=passes.spec
    )
    return made


def grouped_dataset(groups: Callable[[], Iterator[Any]], spec: Any) -> Any:
    """The same for groups: some elements along a new first axis.

    A group passes the queue as one and is cut without copying, so the half millisecond that the queue and the calls of
    functions take is paid once for a dozen small batches.
    """

    def cut(*group: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(spec, group))

    flat = tuple(
        tf.TensorSpec(tf.TensorShape([None]).concatenate(one.shape), one.dtype) for one in tf.nest.flatten(spec)
    )
    return queue_dataset(lambda: (tuple(tf.nest.flatten(group)) for group in groups()), flat).flat_map(cut)


class _Passes:
    """The passes under way, as the graph's functions start, read and end them."""

    def __init__(self, elements: Callable[[], Iterator[Any]], spec: Any) -> None:
        self._elements, self.spec = elements, spec
        self._flat = tf.nest.flatten(spec)
        self._running: dict[int, _Filler] = {}
        self._numbers = itertools.count(1)

    def begin(self, _: Any) -> Any:
        """In the graph: start a pass; its queue and its number."""
        queue, number = tf.py_function(self._start, [], [tf.resource, tf.int64])
        queue.set_shape([])
        number.set_shape([])
        return queue, number

    def take(self, queue: Any, number: Any) -> Any:
        """In the graph: the next element. A queue that is closed and empty ends the pass; one that failed says why."""
        failed, *found = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.bool, *self._dtypes()])
        check = tf.cond(failed, lambda: tf.numpy_function(self._raise, [number], tf.bool), lambda: True)
        with tf.control_dependencies([check]):
            shaped = [tf.ensure_shape(tensor, one.shape) for tensor, one in zip(found, self._flat, strict=True)]
        return tf.nest.pack_sequence_as(self.spec, shaped)

    def end(self, queue: Any, number: Any) -> Any:
        """In the graph: the pass is over, or nobody wants the rest."""
        return tf.numpy_function(self._stop, [number], tf.int64)

    def _dtypes(self) -> list[Any]:
        return [one.dtype for one in self._flat]

    def _start(self) -> tuple[Any, Any]:
        number = next(self._numbers)
        filler = self._running[number] = _Filler(self._elements(), self._flat)
        filler.start()
        return filler.queue.queue_ref, tf.constant(number, tf.int64)

    def _stop(self, number: Any) -> Any:
        filler = self._running.pop(int(number), None)
        if filler is not None:
            filler.stop()
        return np.int64(0)

    def _raise(self, number: Any) -> Any:
        error = self._running[int(number)].error
        raise error if error is not None else RuntimeError("The pass failed.")


class _Filler:
    """The thread that fills a queue."""

    def __init__(self, elements: Iterator[Any], flat: list[Any]) -> None:
        self.error: BaseException | None = None
        self.queue = tf.queue.FIFOQueue(_AHEAD, [tf.bool, *(one.dtype for one in flat)])
        self._elements, self._flat = elements, flat
        self._thread = threading.Thread(target=self._run, name="penstock-tensorflow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the pass and wait until the stream is closed."""
        self._close(waiting_too=True)
        self._thread.join()

    def _run(self) -> None:
        try:
            for element in self._elements:
                self._put(False, tf.nest.flatten(element))
                del element  # the queue has it now: nothing here keeps its batch
        except tf.errors.CancelledError:
            return  # nobody wants the rest
        except BaseException as error:
            self.error = error
            self._put_failure()
        finally:
            self._elements.close()  # type: ignore[attr-defined]
        self._close()

    def _close(self, *, waiting_too: bool = False) -> None:
        """Let no more in; the reader's end and the stream's may meet, and a queue is closed only once."""
        with contextlib.suppress(tf.errors.CancelledError):
            self.queue.close(cancel_pending_enqueues=waiting_too)

    def _put(self, failed: bool, tensors: list[Any]) -> None:
        tf.raw_ops.QueueEnqueueV2(handle=self.queue.queue_ref, components=[tf.constant(failed), *tensors])

    def _put_failure(self) -> None:
        """An element that only says that there will be no more."""
        try:
            self._put(True, [tf.zeros([0] * (one.shape.rank or 0), one.dtype) for one in self._flat])
        except tf.errors.CancelledError:
            return

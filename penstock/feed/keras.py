"""What `model.fit`, `evaluate` and `predict` take, on all three backends of Keras.

Covers: a data adapter whose every pass is a whole new epoch, and the batch that trainers look at before they start.
Does not cover: the conversions (tensorflow.py, torch.py, jax.py).

A data adapter is what Keras turns every kind of input into, and it takes one that is given. The public way, PyDataset,
asks for batches by number, shuffles those numbers, and on TensorFlow reads the first two batches twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.core.tree import map_leaves
from penstock.core.world import WorldError, check_together, launched_world
from penstock.feed.convert import Streamed
from penstock.feed.spec import check_batched, endless

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    from penstock.feed.keras_processes import EqualSteps, over_processes
except ImportError as error:
    raise MissingExtra(what="ds.keras()", extra="keras") from error


class KerasFeed(DataAdapter):  # type: ignore[misc]
    """A dataset as Keras takes it: `model.fit(ds.keras(), validation_data=other.keras(), epochs=3)`."""

    def __init__(self, dataset: Streamed, class_weight: dict[int, float] | None = None) -> None:
        check_batched(dataset, "ds.keras()")
        tree = dataset.schema.tree
        if class_weight is not None and not (isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[1], str)):
            raise InvalidInput("class_weight needs batches of (x, y) with one array of labels.")
        self._dataset, self._class_weight = dataset, class_weight
        self._first: tuple[Any, Any] | None = None
        # Once is enough, and a pass of a single batch that ends looks the same as one that was only looked at.
        self._may_keep = self.num_batches != 1

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Batches as NumPy arrays."""
        return self._batches(lambda value: value)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Batches as JAX arrays."""
        from penstock.feed.jax import to_jax

        return self._batches(to_jax)

    def get_torch_dataloader(self) -> Iterator[Any]:
        """Batches as tensors on the device on which Keras computes."""
        from keras.distribution import distribution
        from keras.src.backend.torch.core import get_device

        from penstock.feed.torch import to_tensor

        if distribution() is not None:
            raise InvalidInput(
                f"{type(distribution()).__name__} is set, and keras.distribution does nothing on the torch backend: "
                f"the model would train on one device. Unset it; see docs/distribute.md."
            )
        device = get_device()
        return self._batches(lambda value: to_tensor(value, None if device == "cpu" else device))

    def get_tf_dataset(self) -> Any:
        """The dataset as tf.data."""
        if launched_world().engine == "TF_CONFIG":
            raise WorldError(
                "TF_CONFIG starts several TensorFlow workers, and fit() of Keras 3 fails on them (keras#20585). Use "
                "torchrun or Ray Train with the torch or jax backend, or a loop of your own over ds.tensorflow()."
            )
        from penstock.feed.tensorflow.door import tensorflow_feed
        from penstock.feed.tensorflow.leaves import spec_of, vector_spec

        if self._class_weight is None:
            return tensorflow_feed(self._dataset)
        spec = (*spec_of(self._dataset), vector_spec("float32"))
        return tensorflow_feed(self._dataset, spec, self._weighted)

    @property
    def num_batches(self) -> int | None:
        """Steps per epoch, or None if only reading tells."""
        return None if endless(self._dataset.node) or over_processes() else self._dataset.cardinality

    @property
    def batch_size(self) -> int | None:
        """Rows of the first batch."""
        return next(iter(self._dataset.schema)).shape[0]

    @property
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    def partial_batch_size(self) -> int | None:
        return None

    def _batches(self, convert: Callable[[Any], Any]) -> Iterator[Any]:
        """One pass. Keras makes more iterators than it uses, so nothing happens before the first batch is asked for."""
        if isinstance(self._dataset.schema.tree, tuple):
            check_together()  # labelled rows are trained on: a copy for each process would learn from its part alone
        stream, first = self._first if self._first is not None else (self._stream(), None)
        self._first = None
        with _Keeping(self, stream) as keeping:
            if first is None:
                first = next(stream, None)
            while first is not None:
                keeping.first = first if self._may_keep else None
                yield map_leaves(self._weighted(first), convert)
                self._may_keep, keeping.first = False, None
                first = None  # while the next batch is waited for, its buffer may already be filled again
                first = next(stream, None)

    def _stream(self) -> Any:
        return EqualSteps(self._dataset) if over_processes() else iter(self._dataset)

    def keep(self, stream: Any, first: Any) -> None:
        """A trainer looked at the first batch to build its model and then starts over: hand it out again."""
        self._first, self._may_keep = (stream, first), False

    def _weighted(self, batch: Any) -> Any:
        """The batch with a weight for each row, if classes have weights."""
        if self._class_weight is None:
            return batch
        return (*batch, weights_of(batch[1], self._class_weight))


def weights_of(labels: np.ndarray, class_weight: Mapping[int, float]) -> np.ndarray:
    """The weight of each row's class: a number or one-hot row; classes that are not named weigh 1."""
    if labels.ndim > 1:
        labels = labels[..., 0] if labels.shape[-1] == 1 else labels.argmax(axis=-1)
    classes = np.rint(labels).astype(np.int64)
    found, which = np.unique(classes, return_inverse=True)
    return np.array([class_weight.get(int(c), 1.0) for c in found], dtype=np.float32)[which.reshape(classes.shape)]


class _Keeping:
    """Closes a stream at the end of a pass, or keeps it if only its first batch was looked at."""

    def __init__(self, feed: KerasFeed, stream: Any) -> None:
        self._feed, self._stream = feed, stream
        self.first: Any = None

    def __enter__(self) -> _Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is GeneratorExit and self.first is not None:
            self._feed.keep(self._stream, self.first)
        else:
            self._stream.close()

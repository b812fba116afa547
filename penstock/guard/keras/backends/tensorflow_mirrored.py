"""Keras on TensorFlow under MirroredStrategy: each device computes a piece of every part.

Covers: dealing out a part's rows to the devices, sums of gradients on each, one optimizer step for all copies.
Does not cover: several processes (Keras 3 cannot train across TensorFlow workers), models made outside of the scope.

Pieces are parts, only at the same time: the state (metrics, batch statistics, seeds) flows from one to the next as it
does between micro-batches, so devices draw different dropout masks and metrics are those of all rows. No forward pass
waits for it. Gradients are taken as if there were no strategy, which would divide losses by the number of devices,
whatever rows each of them has. Only the optimizer's step runs under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from penstock.core.errors import InvalidInput
from penstock.guard.keras import private
from penstock.guard.keras.backends.tensorflow import TensorFlowBackend, add_gradients, all_at_once, to_tensors
from penstock.guard.keras.parts import Program, Values
from penstock.guard.recovery.microbatch import count_rows, part_sizes, split


class MirroredBackend(TensorFlowBackend):
    """Runs a model's parts on all devices of a strategy."""

    whole_step = None

    def __init__(self, model: keras.Model) -> None:
        self._strategy = private.strategy_of(model)
        self._devices: Sequence[str] = self._strategy.extended.worker_devices
        self.replicas = len(self._devices)
        self._sums_on: list[Any] = []
        super().__init__(model, MirroredProgram(model))
        self._check()

    def _check(self) -> None:
        """Refuse what would be computed otherwise than the model's author expects."""
        optimizer = getattr(self.model, "optimizer", None)
        variables = [*self.program.trainable, *self.program.state, *([] if optimizer is None else optimizer.variables)]
        for variable in variables:
            if len(copies_of(variable)) != self.replicas:
                raise InvalidInput(
                    f"{variable.path} was made outside of strategy.scope(), so devices have no copies of it. Make the "
                    f"model, its optimizer and its metrics inside of the scope, and compile there."
                )
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise InvalidInput("Loss scaling is not supported on several devices: use mixed_bfloat16.")
        for layer in private.all_layers(self.model):
            if getattr(layer, "synchronized", False):
                raise InvalidInput(f"{layer.name} is synchronized over devices, and the guard computes on each apart.")

    def piece_rows(self, rows: int) -> list[int]:
        """Rows of each device's piece of a part."""
        return part_sizes(rows, -(-rows // self.replicas))

    def data(self, batch: Any) -> Any:
        """One piece for each device; fewer if there are fewer rows."""
        rows = count_rows(batch)
        return [to_tensors(piece.data) for piece in split(batch, -(-rows // self.replicas), rows=rows)]

    def begin(self) -> None:
        """Forget the gradients."""
        self._sums_on = []

    def gradients(self, state: Values, data: Any, ratios: Any, weight: float) -> tuple[Any, dict[str, Any], Values]:
        """Add each piece's weighted gradients to the sums on its device."""
        rows = [count_rows(piece) for piece in data]
        shares = [tf.constant(weight * n / sum(rows), tf.float32) for n in rows]
        self._trace_open("_gradients", data, [list(state)], [ratios, shares])
        loss, logs, state, found = self._gradients(state, data, ratios, shares)
        for n, piece in enumerate(found):
            with tf.device(self._devices[n]):
                if n == len(self._sums_on):
                    self._sums_on.append(piece)
                else:
                    self._sums_on[n] = [add_gradients(a, b) for a, b in zip(self._sums_on[n], piece, strict=True)]
        return loss, logs, state

    def predict(self, x: Any) -> Any:
        """Outputs of all pieces, as NumPy arrays."""
        found = self._predict(self.program.state_values(), self.data(x))
        arrays = [keras.tree.map_structure(lambda leaf: np.asarray(tf.cast(leaf, tf.float32)), out) for out in found]
        return keras.tree.map_structure(lambda *pieces: np.concatenate(pieces), *arrays)

    def apply(self, state: Values) -> None:
        """One optimizer step on all copies from the sums of all devices."""
        assert self._sums_on
        sums = self._sums_on if len(self._sums_on) == self.replicas and not self._clips() else self._on_first()
        with self._strategy.scope():
            dealt = self._strategy.experimental_distribute_values_from_function(
                lambda context: sums[context.replica_id_in_sync_group]
            )
            self._apply(dealt, list(state))
        self._before, self._sums_on = None, []

    def _clips(self) -> bool:
        """Whether the optimizer looks at gradients before they are added up."""
        optimizer: Any = self.model.optimizer
        return any(getattr(optimizer, name) is not None for name in ("clipnorm", "clipvalue", "global_clipnorm"))

    def _on_first(self) -> list[Any]:
        """The whole sum on the first device, and nothing on the others: the same step, after it is clipped."""
        first, *others = self._sums_on
        with tf.device(self._devices[0]):
            for other in others:
                first = [add_gradients(a, b) for a, b in zip(first, other, strict=True)]
            first = [None if value is None else tf.convert_to_tensor(value) for value in first]
        found = [first]
        for device in self._devices[1:]:
            with tf.device(device):
                found.append([None if value is None else tf.zeros_like(value) for value in first])
        return found

    def undo(self) -> None:
        """Put a torn optimizer step back on all devices."""
        super().undo()
        self._sums_on = []

    def lean(self) -> bool:
        """Old values stay in memory: there is one of them for all copies."""
        return False

    def _hold(self) -> Any:
        # One tensor of them all would have to be on one device.
        return [self._read(variable) for variable in self._touched()]

    def _unheld(self, before: Any) -> list[Any]:
        return list(before)

    def _gradients_of(self, state: Values, data: Any, ratios: Any, weight: Any) -> tuple[Any, ...]:
        losses, found = [], []
        logs: dict[str, Any] = {}
        for n, piece in enumerate(data):
            with alone_on(self._devices[n]), tf.GradientTape() as tape:
                variables = self._copies(n)
                weights = [tf.convert_to_tensor(variable) for variable in variables]
                loss, logs, state = self.program.loss(weights, state, piece, _nth(ratios, n), training=True)
                total = self.model.optimizer.scale_loss(loss)
                total = total * tf.cast(weight[n], total.dtype)
            with tf.device(self._devices[n]):
                found.append(all_at_once(tape.gradient(total, variables)))
            losses.append(tf.cast(loss, tf.float32) * weight[n])
        return tf.add_n(losses), logs, state, found

    def _evaluate_of(self, state: Values, data: Any, ratios: Any) -> tuple[Any, Values]:
        logs: dict[str, Any] = {}
        for n, piece in enumerate(data):
            with alone_on(self._devices[n]):
                weights = [tf.convert_to_tensor(variable) for variable in self._copies(n)]
                _, logs, state = self.program.loss(weights, state, piece, _nth(ratios, n), training=False)
        return logs, state

    def _counts_of(self, state: Values, data: Any, training: bool) -> Any:
        found = []
        for n, piece in enumerate(data):
            with alone_on(self._devices[n]):
                weights = [tf.convert_to_tensor(variable) for variable in self._copies(n)]
                found.append(self.program.counts(weights, state, piece, training))
        return tf.stack(found)

    def _predict_of(self, state: Values, x: Any) -> Any:
        found = []
        for n, piece in enumerate(x):
            with alone_on(self._devices[n]):
                weights = [tf.convert_to_tensor(variable) for variable in self._copies(n)]
                found.append(self.program.predict(weights, state, piece))
        return found

    def _apply_of(self, gradients: Any, state: Values) -> None:
        optimizer, trainable = self.model.optimizer, self.program.trainable
        self._strategy.run(lambda mine: optimizer.apply(mine, trainable), args=(gradients,))
        self._write_state_of(state)

    def _copies(self, n: int) -> list[Any]:
        return [copies_of(variable)[n] for variable in self.program.trainable]

    def _read(self, variable: Any) -> Any:
        return whole_value(variable)

    def _write(self, variable: Any, value: Any) -> None:
        for n, copy in enumerate(copies_of(variable)):
            with tf.device(copy.device):
                copy.assign(value if n == 0 or not _adds_up(copy) else tf.zeros_like(copy))


class MirroredProgram(Program):
    """A model's loss, with the state that all devices have together."""

    def state_values(self) -> Values:
        """Metrics, statistics and seeds as they are now."""
        return [whole_value(variable) for variable in self.state]

    def array_of(self, variable: Any) -> np.ndarray:
        """A copy on the host of what all devices have together."""
        return np.array(whole_value(variable))


def copies_of(variable: Any) -> Sequence[Any]:
    """A variable's copies, one for each device."""
    value = variable.value
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)


def whole_value(variable: Any) -> Any:
    """What a variable's copies say together: each of them the same, or parts of a sum."""
    copies = copies_of(variable)
    if len(copies) == 1 or not _adds_up(copies[0]):
        return copies[0].read_value()
    return tf.add_n([copy.read_value() for copy in copies])


def _adds_up(copy: Any) -> bool:
    read = copy.synchronization == tf.VariableSynchronization.ON_READ
    return bool(read and copy.aggregation == tf.VariableAggregation.SUM)


def _nth(ratios: Any, n: int) -> Any:
    return None if ratios is None else ratios[n]


@contextmanager
def alone_on(device: str) -> Iterator[None]:
    """Compute on a device as if there were no strategy: Keras would divide losses by the number of its devices.

    TensorFlow has no public way out of a scope that a caller is in; its graphs keep scopes in a list.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    before, graph._distribution_strategy_stack = graph._distribution_strategy_stack, []
    try:
        with tf.device(device):
            yield
    finally:
        graph._distribution_strategy_stack = before

"""Keras on the TensorFlow backend: gradients by a graph function that assigns nothing.

Covers: the backend operations that step.py asks for.
Does not cover: aborts, with which TensorFlow answers some failed allocations on CPU (guard/supervise.py).

The snapshot before the optimizer step holds reads of the variables. A read shares the variable's buffer, and TensorFlow
copies a shared buffer before it writes to it: so nothing is copied up front, and the old values cannot change.

All reads are one call of a graph with one result that holds them all, and all writes are one call: one by one they took
3.6 ms of a step of 27 ms. A batch that is not split takes its whole step in one more graph, as in `model.fit`. Taken
apart, a step of 8 ms (2 rows) took 2.7 to 3.3 ms of CPU more than `model.fit`; whole, 0.1 to 0.2 (busy machine, 2 runs
each). It changes variables whose old values the snapshot holds, so that it too is taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.feed.tensorflow.leaves import to_tensor
from penstock.guard.keras.parts import Program, Values
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.undo.file import UndoFile, bytes_of


class TensorFlowBackend:
    """Runs a Keras model's parts with TensorFlow."""

    measurable = False
    """Each size is compiled, which takes longer than a look at it saves."""

    replicas = 1

    def __init__(self, model: keras.Model, program: Program | None = None) -> None:
        self.model = model
        self.program = program or Program(model)
        self._sums: list[Any] | None = None
        self._before: Any = None
        self._reader: Callable[[], Any] | None = None
        self._holds_one = False
        self._file: UndoFile | None = None
        self._in_file = False
        # Several losses keep a metric each, for which Keras reads the static number of rows.
        self._exact = len(self.program.terms.reductions) > 1
        self._make_functions()

    def data(self, batch: Any) -> Any:
        """A part's arrays as tensors."""
        return to_tensors(batch)

    def piece_rows(self, rows: int) -> list[int]:
        """A part is computed whole."""
        return [rows]

    def begin(self) -> None:
        """Forget the gradients."""
        self._sums = None

    def gradients(self, state: Values, data: Any, ratios: Any, weight: float) -> tuple[Any, dict[str, Any], Values]:
        """Add a part's weighted gradients to the sums."""
        share = tf.constant(weight, tf.float32)
        self._trace_open("_gradients", data, [list(state)], [ratios, share])
        loss, logs, state, found = self._gradients(state, data, ratios, share)
        self._sums = (
            found if self._sums is None else [add_gradients(a, b) for a, b in zip(self._sums, found, strict=True)]
        )
        return loss, logs, state

    def evaluate(self, state: Values, data: Any, ratios: Any) -> tuple[dict[str, Any], Values]:
        """Metrics of a part without training."""
        self._trace_open("_evaluate", data, [list(state)], [ratios])
        logs, state = self._evaluate(state, data, ratios)
        return logs, state

    def counts(self, state: Values, data: Any, training: bool) -> Any:
        """What the losses divide by in this part."""
        return self._counts(state, data, training).numpy()

    def predict(self, x: Any) -> Any:
        """Outputs as NumPy arrays."""
        out = self._predict(self.program.state_values(), self.data(x))
        return keras.tree.map_structure(lambda leaf: np.asarray(tf.cast(leaf, tf.float32)), out)

    def prepare(self) -> None:
        """Hold the old values until the step is done."""
        self._keep()

    def apply(self, state: Values) -> None:
        """One optimizer step from the summed gradients."""
        assert self._sums is not None
        self._apply(self._sums, list(state))
        self._before = self._sums = None
        self._in_file = False

    def _keep(self) -> None:
        if self._file is None:
            self._before = self._snapshot()
            return
        # A read shares the variable's buffer, and goes before the step: then nothing is copied on write.
        for index, variable in enumerate(self._touched()):
            self._file.save([_bytes_of(variable)], at=self._places()[index])
        self._in_file = True

    def _places(self) -> list[int]:
        """Where each variable's bytes begin in the file."""
        sizes = [int(np.prod(v.shape, dtype=np.int64)) * v.value.dtype.size for v in self._touched()]
        return [0, *np.cumsum(sizes).tolist()]

    @property
    def whole_step(self) -> Callable[[Any], dict[str, Any]] | None:
        """The step of a batch in one part as one graph.

        Run eagerly, it would save nothing. With XLA it is not taken: under a real lack of memory the test of it failed
        2 times of 2 (seen once: std::bad_alloc, an abort), where the step taken apart goes on. Why was not found.
        """
        return None if self.model.run_eagerly or self.model.jit_compile else self._take_whole_step

    def _take_whole_step(self, data: Any) -> dict[str, Any]:
        """Gradients, optimizer and state of a whole batch in one call, with the old values held until it is done."""
        self._trace_open("_step", data)
        self._keep()
        logs: dict[str, Any] = self._step(data)
        self._before, self._in_file = None, False
        return logs

    def commit(self, state: Values) -> None:
        """Write metrics, statistics and seeds back."""
        self._write_state(list(state))

    def undo(self) -> None:
        """Put a torn optimizer step back."""
        self._sums = None
        if self._before is not None:
            for variable, value in zip(self._touched(), self._unheld(self._before), strict=True):
                self._write(variable, value)
            self._before = None
        if self._in_file and self._file is not None:
            for variable, at in zip(self._touched(), self._places(), strict=False):
                value = np.empty(variable.shape, variable.value.dtype.as_numpy_dtype)
                self._file.load([bytes_of(value)], at=at)
                variable.value.assign(value)
            self._in_file = False

    def lean(self) -> bool:
        """Keep old values in a file from now on. A loop over variables takes longer than one graph of reads."""
        if self._file is not None or not all(":CPU:" in v.value.device for v in self._touched()):
            return False
        self._file = UndoFile()
        return True

    @property
    def nbytes(self) -> int:
        """Nothing is kept between steps."""
        return 0

    def add_ranks(self, ranks: Ranks, share: float) -> None:
        """Never asked: ranks are refused on TensorFlow (guard/ranks/agree.py)."""
        raise InvalidInput("TensorFlow models are not trained across processes.")

    def free(self) -> None:
        """TensorFlow has no cache that can be emptied."""

    def remake(self) -> None:
        """The model computes otherwise from now on: graphs are traced again."""
        self._make_functions()

    def _touched(self) -> list[Any]:
        return [*self.program.trainable, *self.model.optimizer.variables, *self.program.state]

    def _snapshot(self) -> Any:
        """The old values. Its graph is made at the first step: a model that only predicts has no optimizer."""
        if self.model.run_eagerly:
            return self._hold()
        if self._reader is None:
            self._holds_one = all(":CPU:" in variable.value.device for variable in self._touched())
            # Bound to its only graph: choosing one at each call took 180 us.
            self._reader = tf.function(self._hold, autograph=False).get_concrete_function()
        return self._reader()

    def _hold(self) -> Any:
        """All that a step changes, as it is now: a list, or one tensor that holds the list."""
        values = [self._read(variable) for variable in self._touched()]
        # 44 variables on a busy machine: 720 us for 44 results, 450 for one. A GPU's could be moved to the host for it.
        return tf.raw_ops.OptionalFromValue(components=values) if self._holds_one else values

    def _unheld(self, before: Any) -> list[Any]:
        if not self._holds_one:
            return list(before)
        variables = [variable.value for variable in self._touched()]
        types, shapes = [variable.dtype for variable in variables], [variable.shape for variable in variables]
        values: list[Any] = tf.raw_ops.OptionalGetValue(optional=before, output_types=types, output_shapes=shapes)
        return values

    def _trace_open(self, name: str, data: Any, front: Sequence[Any] = (), back: Sequence[Any] = ()) -> None:
        """Trace once for any number of rows before the first call. `front` and `back` stand around the data.

        TensorFlow would trace for the first batch's shape and again, with open shapes, for the first that differs; the
        two round differently. A run that is resumed meets its shapes in another order and would not be bit for bit.
        """
        key = (name, any(value is None for value in keras.tree.flatten(list(back))), len(data))
        if self._exact or self.model.run_eagerly or key in self._traced:
            return
        varies = any(None in tensor.shape[1:] for tensor in getattr(self.model, "inputs", None) or ())
        specs = _open_specs(data, varies)
        fixed = [keras.tree.map_structure(tf.TensorSpec.from_tensor, value) for value in front]
        others = [keras.tree.map_structure(_float_spec, value) for value in back]
        try:
            getattr(self, name).get_concrete_function(*fixed, specs, *others)
            self._traced.add(key)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            # A model that needs to know its number of rows: one trace for each shape, in whatever order they come.
            events.emit("guard.exact_shapes", self.model.name, why=str(error).splitlines()[0][:300])
            self._exact = True
            self._make_functions()

    def _make_functions(self) -> None:
        exact = self._exact
        self._traced: set[tuple[str, bool, int]] = set()

        def function(python: Callable[..., Any], jit: bool = False) -> Callable[..., Any]:
            if self.model.run_eagerly:
                return python
            compiled: Callable[..., Any] = tf.function(
                python, autograph=False, reduce_retracing=not exact, jit_compile=jit or None
            )
            return compiled

        self._gradients = function(self._gradients_of, bool(self.model.jit_compile))
        self._evaluate = function(self._evaluate_of, bool(self.model.jit_compile))
        self._counts = function(self._counts_of)
        self._predict = function(self._predict_of)
        self._apply = function(self._apply_of)
        self._step = function(self._step_of)
        self._reader, self._holds_one = None, False
        self._write_state = function(self._write_state_of)

    def _gradients_of(self, state: Values, data: Any, ratios: Any, weight: Any) -> tuple[Any, ...]:
        variables = [variable.value for variable in self.program.trainable]
        with tf.GradientTape() as tape:
            weights = [tf.convert_to_tensor(variable) for variable in variables]
            loss, logs, state = self.program.loss(weights, state, data, ratios, training=True)
            total = self.model.optimizer.scale_loss(loss)
            total = total * tf.cast(weight, total.dtype)
        return loss * tf.cast(weight, loss.dtype), logs, state, tape.gradient(total, variables)

    def _evaluate_of(self, state: Values, data: Any, ratios: Any) -> tuple[Any, Values]:
        weights = [tf.convert_to_tensor(variable.value) for variable in self.program.trainable]
        _, logs, state = self.program.loss(weights, state, data, ratios, training=False)
        return logs, state

    def _counts_of(self, state: Values, data: Any, training: bool) -> Any:
        weights = [tf.convert_to_tensor(variable.value) for variable in self.program.trainable]
        return self.program.counts(weights, state, data, training)

    def _predict_of(self, state: Values, x: Any) -> Any:
        weights = [tf.convert_to_tensor(variable.value) for variable in self.program.trainable]
        return self.program.predict(weights, state, x)

    def _apply_of(self, gradients: list[Any], state: Values) -> None:
        self.model.optimizer.apply(gradients, self.program.trainable)
        self._write_state_of(state)

    def _step_of(self, data: Any) -> dict[str, Any]:
        state = [variable.value.read_value() for variable in self.program.state]
        _, logs, state, found = self._gradients_of(state, data, None, tf.constant(1.0))
        self._apply_of(all_at_once(found), state)
        told: dict[str, Any] = logs
        return told

    def _write_state_of(self, state: Values) -> None:
        for variable, value in zip(self.program.state, state, strict=True):
            self._write(variable, value)

    def _read(self, variable: Any) -> Any:
        return variable.value.read_value()

    def _write(self, variable: Any, value: Any) -> None:
        variable.value.assign(value)


def _open_specs(arrays: Any, varies: bool) -> Any:
    """Any number of rows; where the model's inputs have open lengths, any length too."""

    def spec(tensor: Any) -> Any:
        if tensor is None:
            return None
        shape = list(tensor.shape)
        if varies and len(shape) > 1:
            shape[1] = None
        return tf.TensorSpec([None, *shape[1:]], tensor.dtype)

    return keras.tree.map_structure(spec, arrays)


def _float_spec(value: Any) -> Any:
    return None if value is None else tf.TensorSpec(np.shape(value), tf.float32)


def all_at_once(gradients: list[Any]) -> list[Any]:
    """The gradients, none before the last: the optimizer's copies do not meet the activations in memory."""
    flat = tf.nest.flatten(gradients, expand_composites=True)
    known = [leaf for leaf in flat if leaf is not None]
    if not known:
        return gradients
    there = iter(tf.raw_ops.IdentityN(input=known))
    passed = [None if leaf is None else next(there) for leaf in flat]
    packed: list[Any] = tf.nest.pack_sequence_as(gradients, passed, expand_composites=True)
    return packed


def _bytes_of(variable: Any) -> np.ndarray:
    """The variable's memory as bytes; on the CPU a tensor lends its buffer."""
    return np.frombuffer(memoryview(variable.value.read_value()), np.uint8)


def add_gradients(total: Any, part: Any) -> Any:
    """Two gradients added; sparse ones become dense, absent ones stay absent."""
    if total is None or part is None:
        return part if total is None else total
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(part)


def to_tensors(batch: Any) -> Any:
    """A part's arrays as tensors."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _tensor(leaf), batch)


def _tensor(leaf: Any) -> Any:
    """A part's leaf, over the same memory if it is NumPy's: the part keeps its batch until the tensor is gone."""
    return to_tensor(leaf) if isinstance(leaf, np.ndarray) else tf.convert_to_tensor(leaf)

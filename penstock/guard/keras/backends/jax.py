"""Keras on the JAX backend: a compiled function of values to gradients, without donation.

Covers: the backend operations that step.py asks for.
Does not cover: which ways of distributing a model are taken (parts.py).

Keras' own fit donates the model's buffers to each step: after an out-of-memory error every variable is gone, and the
error may come to light only when weights are read. Here only the guard's own sums are donated, results are waited for
before they count, and variables change by being pointed at finished arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from penstock.feed.keras_processes import over_processes
from penstock.guard.jax.undo import DonatedUndo, can_donate
from penstock.guard.keras.backends.jax_spread import SpreadProgram
from penstock.guard.keras.parts import Program, Values
from penstock.guard.keras.private import point, values_of
from penstock.guard.ranks.agree import Ranks


class JaxBackend:
    """Runs a Keras model's parts with JAX."""

    measurable = False
    """Each size is compiled, which takes longer than a look at it saves."""

    whole_step = None
    """In one program XLA would plan the new weights and optimizer state beside the activations."""

    replicas = 1

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.program = SpreadProgram(model) if over_processes() else Program(model)
        self._sums: Any = None
        self._undo: DonatedUndo | None = None
        self._saved = False
        self._over: Any = keras.distribution.distribution()
        self._make_functions()

    def piece_rows(self, rows: int) -> list[int]:
        """A part is computed whole."""
        return [rows]

    def data(self, batch: Any) -> Any:
        """A part's arrays as they are, since the compiled function takes NumPy arrays; or spread over devices."""
        return batch if self._over is None else keras.tree.map_structure(self._spread, batch)

    def _spread(self, value: Any) -> Any:
        """Rows dealt out to the devices; where they cannot be dealt out evenly, all devices have all of them."""
        if value is None or (isinstance(value, jax.Array) and not value.is_fully_addressable):
            return value  # of all processes, which have dealt it out together
        mesh, axis = self._over.device_mesh, self._over.batch_dim_name
        count = dict(zip(mesh.axis_names, mesh.shape, strict=True))[axis]
        axes = [axis if len(value) % count == 0 else None] + [None] * (np.ndim(value) - 1)
        return jax.device_put(value, keras.distribution.TensorLayout(axes, mesh).backend_layout)

    def begin(self) -> None:
        """Forget the gradients."""
        self._sums = None

    def gradients(self, state: Values, data: Any, ratios: Any, weight: float) -> tuple[Any, dict[str, Any], Values]:
        """Add a part's weighted gradients to the sums."""
        (_, (loss, logs, state)), found = self._gradients(
            self._weights(), state, self.scale_values(), data, ratios, np.float32(weight)
        )
        sums = found if self._sums is None else self._add(self._sums, found)
        self._sums = None  # donated: whatever happens now, the old sums are gone
        self._sums, state = _finished((sums, state))
        return loss, logs, state

    def evaluate(self, state: Values, data: Any, ratios: Any) -> tuple[dict[str, Any], Values]:
        """Metrics of a part without training."""
        logs, state = _finished(self._evaluate(self._weights(), state, data, ratios))
        return logs, state

    def counts(self, state: Values, data: Any, training: bool) -> Any:
        """What the losses divide by in this part."""
        return np.asarray(self._counts(self._weights(), state, data, training))

    def predict(self, x: Any) -> Any:
        """Outputs as NumPy arrays."""
        out = self._predict(self._weights(), self.program.state_values(), x)
        return keras.tree.map_structure(lambda leaf: np.asarray(leaf.astype(jnp.float32)), out)

    def prepare(self) -> None:
        """Keep old values in a file where they are given to the step; else they stay as they are."""
        if self._undo is not None:
            self._undo.save([*self._weights(), *values_of(self._kept)])
            self._saved = True

    def apply(self, state: Values) -> None:
        """One optimizer step: new weights and state are complete before any variable is pointed at them."""
        weights, kept = _finished(self._apply(values_of(self._kept), self._sums, self._weights()))
        self._saved = False
        point(self.program.trainable, weights)
        point(self._kept, kept)
        self.commit(state)
        self._sums = None

    def commit(self, state: Values) -> None:
        """Write metrics, statistics and seeds back."""
        point(self.program.state, state)

    def undo(self) -> None:
        """Forget the sums. Variables have not been touched, unless they were given to a step that failed."""
        self._sums = None
        if self._saved and self._undo is not None:
            self._saved = False
            variables = [*self.program.trainable, *self._kept]
            point(variables, self._undo.load(values_of(variables)))

    def lean(self) -> bool:
        """Give weights and state to the optimizer step from now on, with the old values in a file."""
        eager = self.model.run_eagerly or not self.model.jit_compile
        if self._undo is not None or self._over is not None or eager:
            return False
        if not can_donate([*self._weights(), *values_of(self._kept)]):
            return False
        self._undo = DonatedUndo()
        self._make_functions()
        return True

    @property
    def nbytes(self) -> int:
        """Nothing is kept between steps."""
        return 0

    def add_ranks(self, ranks: Ranks, share: float) -> None:
        """Add up the gradients of all ranks; a rank without rows has none yet."""
        sums = self._sums if self._sums is not None else [jnp.zeros_like(weight) for weight in self._weights()]
        self._sums = _finished(ranks.add(sums, share))

    def free(self) -> None:
        """XLA frees buffers when their arrays go; compiled programs are kept, they will be needed."""

    def remake(self) -> None:
        """The model computes otherwise from now on: compiled programs are made again."""
        self._make_functions()

    def scale_values(self) -> Values:
        """What the loss scale is read from: all of the optimizer where it scales, else nothing to hand over."""
        return values_of(self.model.optimizer.variables) if self._scales else []

    def _weights(self) -> Values:
        return values_of(self.program.trainable)

    def _make_functions(self) -> None:
        # A model that only predicts need not be compiled, and then has no optimizer.
        optimizer: Any = getattr(self.model, "optimizer", None)
        program = self.program
        self._kept: list[Any] = [] if optimizer is None else list(optimizer.variables)
        own = optimizer is not None and type(optimizer).scale_loss is not keras.optimizers.Optimizer.scale_loss
        self._scales = own  # Keras' own method multiplies by a constant at most

        def total(
            weights: Values, state: Values, scale: Values, data: Any, ratios: Any, weight: Any
        ) -> tuple[Any, Any]:
            loss, logs, state = program.loss(weights, state, data, ratios, training=True)
            with keras.StatelessScope(list(zip(self._kept if scale else [], scale, strict=True))):
                scaled = optimizer.scale_loss(loss)
            return scaled * weight.astype(scaled.dtype), (loss * weight.astype(loss.dtype), logs, state)

        def evaluate(weights: Values, state: Values, data: Any, ratios: Any) -> Any:
            return program.loss(weights, state, data, ratios, training=False)[1:]

        def add(sums: Any, found: Any) -> Any:
            return jax.tree.map(jnp.add, sums, found)

        def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            eager = self.model.run_eagerly or not self.model.jit_compile
            return function if eager else jax.jit(function, **options)

        self._gradients = jit(jax.value_and_grad(total, has_aux=True))
        self._evaluate = jit(evaluate)
        self._counts = jit(program.counts, static_argnums=(3,))
        self._predict = jit(program.predict)
        if optimizer is not None:
            self._apply = jit(optimizer.stateless_apply, donate_argnums=() if self._undo is None else (0, 2))
        self._add = jit(add, donate_argnums=(0,))


def _finished(values: Any) -> Any:
    """Wait for a computation: an error of an asynchronous one appears where its result is waited for."""
    return jax.block_until_ready(values)  # type: ignore[no-untyped-call]

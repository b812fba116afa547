"""Keras optimizers with little state.

Covers: Adafactor that really keeps only rows and columns.
Does not cover: choosing one (guard/optimizer_memory.py).
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from penstock.core.errors import InvalidInput


def make(memory: str | None, learning_rate: float, weight_decay: float) -> keras.optimizers.Optimizer:
    """The optimizer to compile a model with."""
    if memory in ("8bit", "offload"):
        raise InvalidInput(f"Keras has no optimizer with {memory!r} state. Use 'factored', or a torch loop with Guard.")
    decay = weight_decay or None
    if memory == "factored":
        return LeanAdafactor(learning_rate, weight_decay=decay)
    return keras.optimizers.AdamW(learning_rate, weight_decay=weight_decay)


@keras.saving.register_keras_serializable("penstock")
class LeanAdafactor(keras.optimizers.Adafactor):  # type: ignore[misc]
    """Adafactor without the full-size velocity of each matrix, which Keras' own keeps though it is made anew each step.

    The steps are those of `keras.optimizers.Adafactor`.
    """

    def build(self, variables: Any) -> None:
        """Rows and columns for matrices, a velocity for vectors."""
        keras.optimizers.Optimizer.build(self, variables)
        self._r, self._c, self._v = [], [], []
        for variable in variables:
            matrix = len(variable.shape) >= 2
            rows, columns = variable.shape[:-1], (*variable.shape[:-2], *variable.shape[-1:])
            self._r.append(self._state(rows, variable, "row") if matrix else None)
            self._c.append(self._state(columns, variable, "column") if matrix else None)
            self._v.append(None if matrix else self.add_variable_from_reference(variable, name="velocity"))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """As Keras' own; a matrix's velocity exists only here."""
        ops, index = keras.ops, self._get_variable_index(variable)
        gradient, lr = ops.cast(gradient, variable.dtype), ops.cast(learning_rate, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        if not callable(self._learning_rate) and self.relative_step:
            lr = ops.minimum(lr, 1 / ops.sqrt(step))
        rho = ops.minimum(lr, 1 / ops.sqrt(step))
        alpha = ops.maximum(ops.cast(self.epsilon_2, variable.dtype), self._rms(variable)) * rho
        squares = ops.square(gradient) + self.epsilon_1
        beta = 1 - ops.power(step, self.beta_2_decay)
        if len(variable.shape) >= 2:
            r, c = self._r[index], self._c[index]
            self.assign(r, beta * r + (1 - beta) * ops.mean(squares, axis=-1))
            self.assign(c, beta * c + (1 - beta) * ops.mean(squares, axis=-2))
            v = ops.expand_dims(r / ops.mean(r, axis=-1, keepdims=True), -1) * ops.expand_dims(c, -2)
        else:
            v = self._v[index]
            self.assign(v, beta * v + (1 - beta) * squares)
        update = gradient / ops.sqrt(v)
        update = update / ops.maximum(ops.cast(1.0, variable.dtype), self._rms(update) / self.clip_threshold)
        self.assign_sub(variable, alpha * update)

    def _state(self, shape: Any, variable: Any, name: str) -> Any:
        return self.add_variable(shape=shape, dtype=variable.dtype, name=f"{variable.name}_{name}")


def state_nbytes(optimizer: keras.optimizers.Optimizer) -> int:
    """Bytes of the optimizer's variables, single numbers left out."""
    found = 0
    for variable in optimizer.variables:
        count = int(np.prod(variable.shape))
        found += count * np.dtype(str(variable.dtype)).itemsize if count > 1 else 0
    return found

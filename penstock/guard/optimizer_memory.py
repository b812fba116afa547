"""Optimizers that keep less beside the weights.

Covers: `lean_optimizer`: factored, 8-bit or offloaded state by name, and `state_nbytes` to see what one keeps.
Does not cover: the optimizers themselves (guard/torch/lean.py, guard/keras/lean.py).

Adam keeps 8 bytes per parameter, as much as weights and gradients together. Each way to cut that has its price:

"factored"  Adafactor: a row and a column per matrix instead of a matrix. No momentum; needs its own learning rate.
"8bit"      AdamW whose state is quantised in blocks (torchao; torch only): about 2 bytes, slightly noisier steps.
"offload"   AdamW whose state lives in host memory (torch only): exact, but gradients and weights cross the bus.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.core.errors import InvalidInput, MissingExtra

KINDS = ("factored", "8bit", "offload")


def lean_optimizer(model: Any, memory: str | None, *, learning_rate: float = 1e-3, weight_decay: float = 0.0) -> Any:
    """An optimizer for a torch module or a Keras model whose state takes less memory; None gives plain AdamW.

    >>> optimizer = lean_optimizer(module, "8bit", learning_rate=3e-4)  # doctest: +SKIP
    >>> keras_model.compile(lean_optimizer(keras_model, "factored"), loss="mse")  # doctest: +SKIP
    """
    if memory is not None and memory not in KINDS:
        raise InvalidInput(f"optimizer memory must be one of {', '.join(map(repr, KINDS))} or None, not {memory!r}.")
    if _is_keras(model):
        from penstock.guard.keras import lean as keras_lean

        return keras_lean.make(memory, learning_rate, weight_decay)
    try:
        from penstock.guard.torch import lean as torch_lean
    except ImportError as error:
        raise MissingExtra(what="lean_optimizer", extra="torch") from error
    return torch_lean.make(model, memory, learning_rate, weight_decay)


def state_nbytes(optimizer: Any) -> int:
    """Bytes that an optimizer keeps now, step counters left out. It must have been built or stepped."""
    if any(kind.__module__.startswith("keras.") for kind in type(optimizer).__mro__):
        from penstock.guard.keras import lean as keras_lean

        return keras_lean.state_nbytes(optimizer)
    from penstock.guard.torch import lean as torch_lean

    return torch_lean.state_nbytes(optimizer)


def _is_keras(model: Any) -> bool:
    # Asked first: on the torch backend a Keras model is a torch module too.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)

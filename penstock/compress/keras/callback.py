"""Pruning inside Keras' own training loop, or the guard's.

Covers: a callback that thins after every batch on any backend.
Does not cover: masks and schedules (prune.py, masks.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from penstock.compress.thin.prune import Pruner


def pruning_callback(pruner: Pruner, save_to: str | Path | None) -> Any:
    """A callback that takes one pruning step after every batch, and saves the masks after every epoch."""
    return _Pruning(pruner, save_to)


class _Pruning(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, pruner: Pruner, save_to: str | Path | None) -> None:
        super().__init__()
        self.pruner, self.save_to = pruner, save_to

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # On JAX the loop holds the weights itself and hands them out when asked; it reads them back afterwards.
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()
        self.pruner.step()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.save_to is not None:
            self.pruner.save(self.save_to)

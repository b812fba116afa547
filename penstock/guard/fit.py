"""Training a Keras model on a stream, guarded.

Covers: `fit`: epochs, callbacks, validation, checkpoints and resuming around guarded steps.
Does not cover: one step (guard/recovery/step.py, guard/{keras,torch,jax}), evaluation and prediction
(guard/keras/predict.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.guard.epochs import refuse_arrays
from penstock.guard.ranks.in_step import Uneven

if TYPE_CHECKING:
    import keras

PRECISIONS = ("mixed_bfloat16", "mixed_float16", "float32", "auto")


@dataclass(frozen=True)
class FitOptions:
    """Everything about a fit that is neither the model nor the data. See `fit`."""

    epochs: int = 1
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_data: Any = None
    validation_steps: int | None = None
    validation_freq: int = 1
    callbacks: Sequence[Any] | None = None
    verbose: int = 0
    class_weight: Mapping[int, float] | None = None
    micro_batch: int | None = None
    precision: str | None = None
    remat: bool | str | Sequence[str] = False
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_minutes: float = 10.0
    checkpoint_steps: int | None = None
    resume: bool = False
    rehearse: Any = None
    uneven: Uneven = "pad"


def fit(
    model: keras.Model,
    ds: Iterable[Any],
    *,
    epochs: int = 1,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_data: Iterable[Any] | None = None,
    validation_steps: int | None = None,
    validation_freq: int = 1,
    callbacks: Sequence[Any] | None = None,
    verbose: int = 0,
    class_weight: Mapping[int, float] | None = None,
    micro_batch: int | None = None,
    precision: str | None = None,
    remat: bool | str | Sequence[str] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_minutes: float = 10.0,
    checkpoint_steps: int | None = None,
    resume: bool = False,
    rehearse: Any = None,
    supervise: bool = False,
    uneven: Uneven = "pad",
) -> keras.callbacks.History:
    """Train a compiled Keras model on batches `(x, y)` or `(x, y, sample_weight)`; returns Keras' History.

    Each batch of `ds` is one step of the optimizer. If it does not fit in memory it is computed in micro-batches, with
    the loss, gradients, metrics and schedules of the whole batch. `micro_batch` sets the first size to try.

    `precision="auto"` allows bfloat16 if a single sample does not fit; a name sets the policy at once (float16 with
    loss scaling). `remat="auto"` allows recomputing activations after that, biggest first; True recomputes in all
    layers with weights, a list in those named.
    `checkpoint` is a folder: the run is saved there every `checkpoint_minutes`, every `checkpoint_steps` if given, at
    the end, and when SIGTERM asks the process to stop (it exits with code 143), beside the training where there is room
    for a copy. `resume=True` goes on from the last good checkpoint.
    `rehearse=True` tries the largest batch, a validation batch and a save before the run and puts everything back. It
    is the default where batches are padded to their longest row (the first ones are looked at to find the largest);
    False never rehearses, and a batch given instead is the one that is tried.
    `supervise=True` restarts the script in a child process that may be killed for its memory and is then started
    again with smaller micro-batches; it needs `checkpoint`.
    Across processes (torchrun, Ray Train) every rank trains on its part of `ds`, and a step is that of all their rows
    together. Where ranks have different numbers of batches, `uneven="pad"` trains on all rows and `"drop"` stops with
    the rank that has the fewest.

    >>> history = fit(model, ds, epochs=10, checkpoint="runs/first", resume=True)  # doctest: +SKIP
    """
    given = dict(locals())
    options = FitOptions(**{field.name: given[field.name] for field in fields(FitOptions)})
    _check(options)
    refuse_arrays(ds, "ds")
    refuse_arrays(validation_data, "validation_data")
    if supervise:
        from penstock.guard.supervise import become_supervisor

        become_supervisor(checkpoint)
    try:
        from penstock.guard.keras.loop import train
    except ImportError as error:
        raise MissingExtra(what="fit()", extra="keras") from error
    return train(model, ds, options)


def _check(options: FitOptions) -> None:
    for name in ("epochs", "initial_epoch"):
        if not isinstance(getattr(options, name), Integral):
            raise InvalidInput(f"{name} must be a whole number, not {getattr(options, name)!r}.")
    if options.epochs < 0 or options.initial_epoch < 0:
        raise InvalidInput(f"epochs must not be negative: {options.epochs} from {options.initial_epoch}.")
    if options.validation_freq < 1:
        raise InvalidInput(f"validation_freq must be at least 1, not {options.validation_freq}.")
    if options.micro_batch is not None and options.micro_batch < 1:
        raise InvalidInput(f"micro_batch must be at least 1, not {options.micro_batch}.")
    if options.precision is not None and options.precision not in PRECISIONS:
        raise InvalidInput(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, not {options.precision!r}.")
    if isinstance(options.remat, str) and options.remat != "auto":
        raise InvalidInput(f"remat must be True, False, 'auto' or a list of layer names, not {options.remat!r}.")
    if options.checkpoint_steps is not None and options.checkpoint_steps < 1:
        raise InvalidInput(f"checkpoint_steps must be at least 1, not {options.checkpoint_steps}.")
    if options.class_weight is not None and not isinstance(options.class_weight, Mapping):
        raise InvalidInput(f"class_weight must be a dict such as {{0: 1.0, 1: 5.0}}, not {options.class_weight!r}.")
    if options.checkpoint is not None and os.path.isfile(options.checkpoint):
        raise InvalidInput(f"checkpoint is a folder, but {os.fspath(options.checkpoint)} is a file. Name another.")
    if options.resume and options.checkpoint is None:
        raise InvalidInput("resume=True needs checkpoint=, the folder to go on from.")

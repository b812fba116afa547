"""Steps with a compiled Keras model, in parts.

Covers: training, evaluation and prediction steps for guard/recovery/step.py, on whichever backend Keras runs.
Does not cover: the loop over epochs (guard/fit.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.keras import private
from penstock.guard.keras.parts import Program, Values, lower_precision
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.ladder import Phase
from penstock.guard.recovery.microbatch import Part

Logs = dict[str, float]


class Backend(Protocol):
    """What the steps below ask of one backend. Only `apply` and `commit` change anything; `prepare` reserves.

    `apply` writes the state too, with the weights: a step is taken whole or not at all. `whole_step` does what
    `begin`, `gradients` and `apply` do for a batch in one part, where that is quicker; `undo` puts it back as well.
    Over several `replicas` a part is computed in pieces at the same time, and `ratios` and `counts` are a piece's each.
    """

    program: Program
    replicas: int

    @property
    def measurable(self) -> bool: ...

    @property
    def whole_step(self) -> Callable[[Any], dict[str, Any]] | None: ...

    def piece_rows(self, rows: int) -> list[int]: ...
    def data(self, batch: Any) -> Any: ...
    def begin(self) -> None: ...
    def gradients(self, state: Values, data: Any, ratios: Any, weight: float) -> tuple[Any, dict[str, Any], Values]: ...
    def evaluate(self, state: Values, data: Any, ratios: Any) -> tuple[dict[str, Any], Values]: ...
    def counts(self, state: Values, data: Any, training: bool) -> Any: ...
    def predict(self, x: Any) -> Any: ...
    def prepare(self) -> None: ...
    def apply(self, state: Values) -> None: ...
    def commit(self, state: Values) -> None: ...
    def undo(self) -> None: ...
    def add_ranks(self, ranks: Ranks, share: float) -> None: ...
    def free(self) -> None: ...
    def lean(self) -> bool: ...
    def remake(self) -> None: ...

    @property
    def nbytes(self) -> int: ...


def make_backend(model: keras.Model) -> Backend:
    """The operations of the backend that Keras runs on."""
    name = keras.backend.backend()
    if name == "torch":
        from penstock.guard.keras.backends.torch import TorchBackend

        return TorchBackend(model)
    if name == "tensorflow" and private.strategy_of(model) is not None:
        from penstock.guard.keras.backends.tensorflow_mirrored import MirroredBackend

        return MirroredBackend(model)
    if name == "tensorflow":
        from penstock.guard.keras.backends.tensorflow import TensorFlowBackend

        return TensorFlowBackend(model)
    if name == "jax":
        from penstock.guard.keras.backends.jax import JaxBackend

        return JaxBackend(model)
    raise InvalidInput(f"Keras runs on {name!r}; the guard knows tensorflow, torch and jax.")


class _Step:
    """What training, evaluation and prediction steps share."""

    phase: Phase = "forward"
    training = True
    weight: float | None = 1.0
    sure, waits_inside = False, False
    """What Keras' optimizers allocate is theirs to say."""

    @property
    def measurable(self) -> bool:
        """Whether small parts of this kind of step can be measured."""
        return self.training and self.backend.measurable

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._state: Values = []
        self._ratios: dict[int, Any] = {}
        self.on_remat: Callable[[], bool] | None = None

    def begin(self, parts: Sequence[Part]) -> None:
        """Read the state that flows through the parts, and find the losses' ratios."""
        self.phase = type(self).phase
        self.backend.begin()
        self._state = self.backend.program.state_values()
        self._ratios = self._find_ratios(parts)

    def drop(self) -> None:
        """Forget the sums; a torn optimizer step is put back."""
        self._state = []
        self.backend.undo()

    def free(self) -> None:
        """Empty the backend's caches."""
        self.backend.free()

    def combine(self, ranks: Ranks, share: float) -> None:
        """Evaluation and prediction are each rank's own."""

    def prepare(self) -> None:
        """Only training has anything to reserve."""

    def lean(self) -> bool:
        """Keep old values in a file from now on, not in memory."""
        return self.training and self.backend.lean()

    def holds(self) -> dict[str, int]:
        """Bytes by owner."""
        model = self.backend.program.model
        optimizer = getattr(model, "optimizer", None) if self.training else None
        weights = variables_nbytes(model.variables)
        return {
            "parameters": weights,
            "gradients": variables_nbytes(model.trainable_variables) if self.training else 0,
            "optimizer state": 0 if optimizer is None else variables_nbytes(optimizer.variables),
            "guard": self.backend.nbytes,
        }

    def lower_precision(self) -> None:
        """Compute in bfloat16 from now on."""
        lower_precision(self.backend.program.model)
        self.backend.remake()

    def rematerialise(self) -> bool:
        """Recompute the biggest activations from now on; True while smaller ones are left."""
        left = self.on_remat() if self.on_remat is not None else False
        self.backend.remake()
        return left

    def _find_ratios(self, parts: Sequence[Part]) -> dict[int, Any]:
        terms, backend = self.backend.program.terms, self.backend
        pieces = [backend.piece_rows(part.rows) for part in parts]
        rows = [n for part in pieces for n in part]
        if len(rows) == 1 or not terms.needs_ratios:
            return {}
        counts = None
        if terms.needs_counts:
            found = [backend.counts(self._state, backend.data(part.data), self.training) for part in parts]
            counts = [count for part in found for count in np.atleast_2d(part)]
        ratios = iter(terms.ratios(rows, counts))
        dealt = [[next(ratios) for _ in part] for part in pieces]
        return {part.start: some if backend.replicas > 1 else some[0] for part, some in zip(parts, dealt, strict=True)}


class TrainStep(_Step):
    """One real batch through the model and optimizer. `logs` are the metrics after it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.logs: dict[str, Any] = {}
        self._whole: Any = None
        self._failed = False
        self.several = False
        """Whether other ranks' rows belong to the same step."""

    def begin(self, parts: Sequence[Part]) -> None:
        """As for every step; the first split batch looks for masks before it trusts shares of rows."""
        self._whole = None
        if len(parts) == 1 and self.backend.whole_step is not None and not self._failed:
            self.phase = "forward"
            self._whole = self.backend.data(parts[0].data)
            return
        split = len(parts) > 1 or self.several or self.backend.replicas > 1
        if parts and split and not self.backend.program.terms.needs_counts:
            self._look_for_masks(parts[0])
        super().begin(parts)
        if self.several:
            self.weight = self._weight_of(parts)

    def combine(self, ranks: Ranks, share: float) -> None:
        """Gradients of all ranks."""
        self.backend.add_ranks(ranks, share)

    def _weight_of(self, parts: Sequence[Part]) -> float | None:
        """What the loss of this rank's rows is a mean over; None for a sum."""
        terms = self.backend.program.terms
        kinds = set(terms.reductions)
        if "sum" in kinds and (len(kinds) > 1 or self.backend.program.model.losses):
            raise InvalidInput("Losses that are sums cannot be mixed with means or regularisation across ranks.")
        if "sum" in kinds:
            return None
        if not terms.needs_counts:
            return float(sum(part.rows for part in parts))
        if len(terms.reductions) > 1:
            raise InvalidInput("Several weighted or masked losses cannot be trained across ranks.")
        counts = [self.backend.counts(self._state, self.backend.data(part.data), True) for part in parts]
        return float(sum(np.sum(count) for count in counts))

    def part(self, part: Part) -> None:
        """Add one part's gradients. A whole batch waits for `apply`."""
        if self._whole is not None:
            return
        self.phase = "backward"
        data = self.backend.data(part.data)
        ratios = self._ratios.get(part.start)
        _, self.logs, self._state = self.backend.gradients(self._state, data, ratios, part.share)

    def prepare(self) -> None:
        """Reserve what the optimizer step needs. A whole batch has nothing to apply yet."""
        if self._whole is None:
            self.phase = "apply"
            self.backend.prepare()

    def apply(self) -> None:
        """Step the optimizer once and write metrics and statistics back."""
        step = self.backend.whole_step
        if self._whole is not None and step is not None:
            self.phase = "step"
            self.logs = step(self._whole)
        else:
            self.phase = "apply"
            self.backend.apply(self._state)
        self._whole, self._failed = None, False

    def drop(self) -> None:
        """As for every step. The batch is tried again in single phases, which tell where memory is short."""
        self._whole, self._failed = None, True
        super().drop()

    _looked = False

    def _look_for_masks(self, part: Part) -> None:
        # A mask shows only in a forward pass; one row of the first split batch is enough to know.
        if self._looked or not self.backend.program.terms.reductions:
            return
        row = keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[:1], part.data)
        self.backend.counts(self.backend.program.state_values(), self.backend.data(row), True)
        self._looked = True


class EvalStep(_Step):
    """One real batch of an evaluation."""

    phase: Phase = "evaluate"
    training = False

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.logs: dict[str, Any] = {}

    def part(self, part: Part) -> None:
        """Update the metrics with one part."""
        data = self.backend.data(part.data)
        self.logs, self._state = self.backend.evaluate(self._state, data, self._ratios.get(part.start))

    def apply(self) -> None:
        """Write the metrics back."""
        self.backend.commit(self._state)


class PredictStep(_Step):
    """Outputs of one real batch, as NumPy arrays."""

    phase: Phase = "predict"
    training = False

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._found: list[Any] = []
        self.outputs: Any = None

    def begin(self, parts: Sequence[Part]) -> None:
        """Forget what an earlier try predicted."""
        self.phase = "predict"
        self._found = []

    def part(self, part: Part) -> None:
        """Predict one part."""
        self._found.append(self.backend.predict(part.data))

    def apply(self) -> None:
        """Join the parts."""
        found = self._found
        self.outputs = found[0] if len(found) == 1 else keras.tree.map_structure(lambda *a: np.concatenate(a), *found)
        self._found = []


def variables_nbytes(variables: Any) -> int:
    """Bytes of Keras variables, each counted once."""
    known = {id(variable): variable for variable in variables}
    return sum(math.prod(v.shape) * _itemsize(str(v.dtype)) for v in known.values())


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def as_floats(logs: dict[str, Any]) -> Logs:
    """Metric values as Python numbers, for callbacks and histories."""
    out: Logs = {}
    for name, value in logs.items():
        array = keras.ops.convert_to_numpy(value)
        out[name] = float(array) if np.ndim(array) == 0 else array.tolist()
    return out

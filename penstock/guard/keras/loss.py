"""What each Keras loss divides by, so that parts add up to the whole batch.

Covers: sums, means over sample weights, and masks, for any number of losses.
Does not cover: the plain mean over samples, for which a part's share of the rows is already right.

The guard weights a part's total loss by rows_i / rows. A loss that is not a mean over rows is multiplied first by
ratio_i = (d_i / d) * (rows / rows_i), where d is what the loss divides by; a sum divides by nothing, its ratio is
rows / rows_i. Regularisation losses, which are the same in each part, need no ratio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

# On JAX masks are kept beside the tensors, so that reading an attribute would miss them.
from penstock.guard.keras import private
from penstock.guard.keras.private import get_keras_mask

Found = list[Any]


class LossTerms:
    """The compiled losses of a model, scaled or counted while a block runs."""

    def __init__(self, model: keras.Model) -> None:
        default = type(model).compute_loss is keras.Model.compute_loss
        self._compiled = private.compiled_loss(model) if default else None
        self._ratios: Any = None
        self._found: Found | None = None
        self.masked = False

    @property
    def reductions(self) -> list[str]:
        """How each loss is reduced; empty if the user computes the loss."""
        flat = private.loss_terms(self._compiled)
        return [getattr(term.loss, "reduction", "sum_over_batch_size") for term in flat]

    @property
    def needs_counts(self) -> bool:
        """Whether a loss divides by something that only a forward pass tells."""
        return self.masked or "mean_with_sample_weight" in self.reductions

    @property
    def needs_ratios(self) -> bool:
        """Whether a part's share of the rows is not enough."""
        return self.needs_counts or "sum" in self.reductions

    def ratios(self, rows: list[int], counts: list[np.ndarray] | None) -> list[np.ndarray]:
        """The factor of each loss in each part."""
        total_rows, reductions = sum(rows), self.reductions
        out = [np.ones(len(reductions), np.float32) for _ in rows]
        for k, reduction in enumerate(reductions):
            total = float(sum(count[k] for count in counts)) if counts is not None else 0.0
            for i, part_rows in enumerate(rows):
                if reduction == "sum":
                    out[i][k] = total_rows / part_rows
                elif counts is not None and total:
                    out[i][k] = float(counts[i][k]) / total * total_rows / part_rows
        return out

    @contextlib.contextmanager
    def scaled_by(self, ratios: Any) -> Iterator[None]:
        """Multiply each loss by its ratio inside the block, and notice masks."""
        self._ratios = ratios
        with self._wrapped():
            yield
        self._ratios = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[Found]:
        """Collect what each loss divides by inside the block."""
        self._found = []
        try:
            with self._wrapped():
                yield self._found
        finally:
            self._found = None

    @contextlib.contextmanager
    def _wrapped(self) -> Iterator[None]:
        terms = private.loss_terms(self._compiled)
        if not terms:
            yield
            return
        wrapped = [term._replace(loss=_Term(self, k, term.loss)) for k, term in enumerate(terms)]
        with private.terms_replaced(self._compiled, wrapped):
            yield

    def call(self, index: int, loss: Any, arguments: tuple[Any, Any, Any]) -> Any:
        """One loss of one part: counted, scaled, or as it is."""
        y_true, y_pred, sample_weight = arguments
        if self._found is not None:
            self._found.append(_divisor(loss, y_true, y_pred, sample_weight))
        value = loss(y_true, y_pred, sample_weight)
        if get_keras_mask(y_pred) is not None or getattr(loss, "ignore_class", None) is not None:
            self.masked = True
        return value if self._ratios is None else value * keras.ops.cast(self._ratios[index], value.dtype)


class _Term:
    """Stands for a loss while parts are computed."""

    def __init__(self, terms: LossTerms, index: int, loss: Any) -> None:
        self._terms, self._index, self._loss = terms, index, loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return self._terms.call(self._index, self._loss, (y_true, y_pred, sample_weight))


def _divisor(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The number that this loss divides its sum by."""
    ops = keras.ops
    mask = get_keras_mask(y_pred)
    values = loss.call(ops.convert_to_tensor(y_true, loss.dtype), ops.convert_to_tensor(y_pred, loss.dtype))
    own_mask = get_keras_mask(values)
    if own_mask is not None:
        mask = own_mask if mask is None else ops.logical_and(mask, own_mask)
    weight = None if mask is None else ops.cast(mask, "float32")
    if loss.reduction == "mean_with_sample_weight" and sample_weight is not None:
        sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        while weight is not None and len(sample_weight.shape) < len(weight.shape):
            sample_weight = ops.expand_dims(sample_weight, -1)
        weight = sample_weight if weight is None else weight * sample_weight
    if weight is not None:
        return ops.sum(weight)
    return ops.sum(ops.ones_like(ops.cast(values, "float32")))

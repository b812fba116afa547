"""One optimizer step of Keras on torch in units: some variables, or a slice of one.

Covers: Keras' own optimizers, which treat variables (or elements) apart from each other.
Does not cover: how units are taken to the end (guard/recovery/undo/roll_forward.py), other optimizers (torch.py).

A unit is stepped by `optimizer.apply` with the unit's variables alone. A sliced variable and its slots point at views
for that moment. What belongs to the step as a whole (iterations, Nadam's product) is put back before each unit, so that
all units see the same numbers and the step advances them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import torch

from penstock.guard.keras import private
from penstock.guard.recovery.undo.units import Item, Slice, Unit, allowance, largest, plan
from penstock.guard.torch.state import Undo
from penstock.guard.torch.step_units import SCRATCH

_BY_VARIABLE = frozenset({"Adafactor", "Ftrl", "Lamb", "Muon"})
_PARALLEL = "keras.src.backend.torch.optimizers."
"""Classes of this room work element by element on the tensors of lists of variables."""


def in_pieces(optimizer: Any) -> bool:
    """Whether this optimizer is one of Keras' own that treats each variable apart from the others."""
    kind = type(optimizer)
    by_variable = kind.__module__.startswith("keras.src.optimizers.") and kind.__name__ in _BY_VARIABLE
    known = by_variable or kind.__module__.startswith(_PARALLEL)
    return known and "apply" not in vars(optimizer) and not optimizer.use_ema and _slots(optimizer) is not None


class KerasUnits:
    """The units of one optimizer, and how one is saved, taken and restored."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._slots: dict[int, list[Any]] = _slots(optimizer) or {}
        own = {id(slot) for slots in self._slots.values() for slot in slots}
        self._shared = [v for v in _all_variables(optimizer) if id(v) not in own]
        self._before: list[torch.Tensor] = []
        self._variables: list[Any] = []
        self._gradients: list[torch.Tensor] = []
        self._items: list[Item] = []
        self._planned_for: list[tuple[int, bool]] = []
        self._undo = Undo()
        self._clipped = False
        self.units: list[Unit] = []

    @property
    def nbytes(self) -> int:
        """Memory of the undo buffer."""
        return self._undo.nbytes

    def prepare(self, gradients: list[torch.Tensor], variables: list[Any]) -> None:
        """Clip over all gradients, plan, reserve. Changes nothing."""
        self._gradients, self._variables = private.with_gradients(self._optimizer, gradients, variables)
        # A norm is one of a whole gradient, or of all of them: what is clipped by value can wait for its unit.
        self._clipped = bool(self._optimizer.clipnorm or self._optimizer.global_clipnorm)
        if self._clipped:
            self._gradients = private.clipped(self._optimizer, self._gradients)
        self._before = [variable.value.detach().clone() for variable in self._shared]
        kinds = [(id(v), g.is_contiguous()) for v, g in zip(self._variables, self._gradients, strict=True)]
        if kinds != self._planned_for:
            self._planned_for = []  # if there is no room for the new plan, the old one is gone
            self._plan()
            self._planned_for = kinds
        elements = max((sum(piece.stop - piece.start for piece in unit) for unit in self.units), default=0)
        torch.empty(SCRATCH * elements * 4, dtype=torch.uint8)  # raises unless there is room for what a unit makes

    def _plan(self) -> None:
        """Units for these variables and gradients, and room to undo one."""
        self._items = [self._item(*pair) for pair in zip(self._variables, self._gradients, strict=True)]
        room = allowance(self._items)
        self.units = plan(self._items, room)
        most = largest(self._items, self.units) + 64 * max(map(len, self.units), default=0) * 8
        self._undo.reserve(most, in_file=most > 2 * room)

    def done(self) -> None:
        """Let go of the gradients."""
        self._gradients, self._variables, self._before = [], [], []

    def save(self, unit: Unit) -> None:
        """Copy the unit's variables and slots."""
        self._undo.save(self._touched(unit))

    def restore(self, unit: Unit) -> None:
        """Put them back."""
        self._undo.restore(self._touched(unit))

    def take(self, unit: Unit) -> None:
        """Step the unit's variables alone."""
        with torch.no_grad():
            for variable, value in zip(self._shared, self._before, strict=True):
                variable.value.copy_(value)
        with self._cut(unit) as gradients, self._unclipped():
            self._optimizer.apply(gradients, [self._variables[piece.item] for piece in unit])

    @contextmanager
    def _cut(self, unit: Unit) -> Iterator[list[torch.Tensor]]:
        """Sliced variables and their slots point at views; yields the gradients to match."""
        kept: list[tuple[Any, Any]] = []
        gradients = []
        try:
            for piece in unit:
                variable, gradient = self._variables[piece.item], self._gradients[piece.item]
                if piece.stop - piece.start < gradient.numel():
                    gradient = gradient.view(-1)[piece.start : piece.stop]
                    for part in [variable, *self._slots[id(variable)]]:
                        view = part.value.detach().view(-1)[piece.start : piece.stop]
                        kept.append((part, private.swap_value(part, view)))
                gradients.append(gradient)
            yield gradients
        finally:
            for part, value in kept:
                private.swap_value(part, value)

    @contextmanager
    def _unclipped(self) -> Iterator[None]:
        optimizer = self._optimizer
        norms = optimizer.clipnorm, optimizer.global_clipnorm
        if self._clipped:
            optimizer.clipnorm = optimizer.global_clipnorm = None
        try:
            yield
        finally:
            optimizer.clipnorm, optimizer.global_clipnorm = norms

    def _touched(self, unit: Unit) -> list[torch.Tensor]:
        return [
            self._sliced(part.value.detach(), piece)
            for piece in unit
            for part in [self._variables[piece.item], *self._slots[id(self._variables[piece.item])]]
        ]

    def _sliced(self, tensor: torch.Tensor, piece: Slice) -> torch.Tensor:
        whole = piece.stop - piece.start == self._items[piece.item].numel
        return tensor if whole else tensor.view(-1)[piece.start : piece.stop]

    def _item(self, variable: Any, gradient: torch.Tensor) -> Item:
        tensors = [part.value for part in [variable, *self._slots[id(variable)]]]
        same = all(t.shape == tensors[0].shape and t.is_contiguous() for t in tensors)
        elementwise = type(self._optimizer).__module__.startswith(_PARALLEL) and variable.constraint is None
        nbytes = sum(t.numel() * t.element_size() for t in tensors)
        numel = max(1, tensors[0].numel())
        return Item(numel, nbytes / numel, same and elementwise and gradient.is_contiguous())


def _slots(optimizer: Any) -> dict[int, list[Any]] | None:
    """Each trainable variable's slots; None if a large variable of the optimizer belongs to none of them."""
    variables = private.stepped_variables(optimizer)
    slots: dict[int, list[Any]] = {id(variable): [] for variable in variables}
    for found in list(vars(optimizer).values()):
        if not isinstance(found, list) or len(found) != len(variables) or found is variables:
            continue
        if all(slot is None or isinstance(slot, keras.Variable) for slot in found):
            for variable, slot in zip(variables, found, strict=True):
                if slot is not None and slot is not variable and id(slot) not in map(id, slots[id(variable)]):
                    slots[id(variable)].append(slot)
    owned = {id(slot) for found in slots.values() for slot in found}
    left = [v for v in _all_variables(optimizer) if id(v) not in owned]
    return None if any(len(v.shape) for v in left) else slots


def _all_variables(optimizer: Any) -> list[Any]:
    """The optimizer's variables, those that it holds without listing them included."""
    held = [value for value in vars(optimizer).values() if isinstance(value, keras.Variable)]
    return list({id(variable): variable for variable in [*optimizer.variables, *held]}.values())

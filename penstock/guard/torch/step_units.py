"""One optimizer step of torch in units: some parameters, or a slice of one.

Covers: torch's own optimizers that treat parameters (or elements) apart from each other; making their state.
Does not cover: how units are taken to the end (guard/recovery/undo/roll_forward.py).

A unit is stepped by the optimizer itself, which for that moment knows only the unit's parameters. Of a slice it is
shown a stand-in: views of the parameter, its gradient and its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.guard.recovery.undo.units import Item, Slice, Unit, allowance, largest, plan
from penstock.guard.torch.state import Undo, plain_tensors

_ELEMENTWISE = frozenset(
    {"SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"}
)
_BY_PARAMETER = frozenset({"Adafactor", "Muon", "OffloadedAdamW", "AdamW8bit", "Adam8bit"})
_ROOMS = ("torch.optim", "torchao.", "penstock.")
SCRATCH = 4
"""Temporary tensors of a unit's size that a step may make at once. Foreach steps make three."""


def in_pieces(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimizer treats each parameter apart from the others."""
    name, room = type(optimizer).__name__, type(optimizer).__module__
    known = room.startswith(_ROOMS) and name in _ELEMENTWISE | _BY_PARAMETER
    return known and not any(g.get("capturable") or g.get("differentiable") for g in optimizer.param_groups)


def can_slice(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it treats each element apart from the others."""
    return type(optimizer).__name__ in _ELEMENTWISE and type(optimizer).__module__.startswith("torch.optim")


class StepUnits:
    """The units of one optimizer, and how one is saved, taken and restored."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._params: list[tuple[torch.Tensor, int]] = []
        self._items: list[Item] = []
        self._new: set[torch.Tensor] = set()
        self._undo = Undo()
        self._scalars: list[tuple[dict[str, Any], str, Any]] = []
        self._step: Callable[[], Any] = optimizer.step
        self.units: list[Unit] = []

    @property
    def nbytes(self) -> int:
        """Memory of the undo buffer."""
        return self._undo.nbytes

    def using(self, step: Callable[[], Any]) -> StepUnits:
        """Take units by this call."""
        self._step = step
        return self

    def prepare(self) -> bool:
        """Make missing state, plan, reserve. False if the state cannot be made before the step."""
        groups = enumerate(self._optimizer.param_groups)
        self._params = [(p, number) for number, group in groups for p in group["params"] if p.grad is not None]
        if not self._make_state():
            return False
        self._items = [self._item(param) for param, _ in self._params]
        room = allowance(self._items)
        self.units = plan(self._items, room)
        most = largest(self._items, self.units) + 64 * max(map(len, self.units), default=0) * 8
        self._undo.reserve(most, in_file=most > 2 * room)
        scratch = max(map(self._scratch_nbytes, self.units), default=0)
        torch.empty(scratch, dtype=torch.uint8)  # raises unless there is room for what a unit makes
        return True

    def _scratch_nbytes(self, unit: Unit) -> int:
        """What stepping the unit takes besides. Where one matrix is much of the model, four of it would be a lot."""
        group = self._optimizer.param_groups[self._params[unit[0].item][1]]
        one_matrix = len(unit) == 1 and self._params[unit[0].item][0].ndim > 1
        if one_matrix and type(self._optimizer) is torch.optim.Adafactor and not group["foreach"]:
            tensors = 2 if group["maximize"] else 1  # the estimate, which becomes the update; a negated gradient
        else:
            tensors = SCRATCH
        return tensors * sum(map(self._nbytes_of, unit))

    def save(self, unit: Unit) -> None:
        """Copy parameters, gradients (some steps write into them) and state of the unit."""
        self._scalars = []
        for piece in unit:
            state = self._optimizer.state.get(self._params[piece.item][0], {})
            self._scalars += [(state, name, v) for name, v in state.items() if not isinstance(v, torch.Tensor)]
        self._undo.save(self._touched(unit))

    def restore(self, unit: Unit) -> None:
        """Put them back."""
        self._undo.restore(self._touched(unit))
        for state, name, value in self._scalars:
            state[name] = value

    def take(self, unit: Unit) -> None:
        """Step the unit's parameters alone."""
        stand_ins = [_StandIn(self._optimizer, self._params[piece.item][0], piece, self._new) for piece in unit]
        groups = self._optimizer.param_groups
        own = [dict(group, params=[]) for group in groups]
        for piece, stand_in in zip(unit, stand_ins, strict=True):
            own[self._params[piece.item][1]]["params"].append(stand_in.param)
        try:
            self._optimizer.param_groups = [group for group in own if group["params"]]
            self._step()
            for stand_in in stand_ins:
                stand_in.settle()
        finally:
            self._optimizer.param_groups = groups
            for stand_in in stand_ins:
                stand_in.leave()
        # Only now: a unit that fails is taken again as it was.
        self._new -= {self._params[p.item][0] for p in unit if p.stop == self._items[p.item].numel}

    def _touched(self, unit: Unit) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for piece in unit:
            param, _ = self._params[piece.item]
            state = self._optimizer.state.get(param, {})
            tensors = [param, param.grad, *(v for v in state.values() if isinstance(v, torch.Tensor))]
            whole = piece.stop - piece.start == param.numel()
            for tensor in tensors:
                assert tensor is not None
                if whole or tensor.shape != param.shape:
                    found += plain_tensors(tensor.detach())
                else:
                    found.append(tensor.detach().view(-1)[piece.start : piece.stop])
        return found

    def _nbytes_of(self, piece: Slice) -> int:
        return (piece.stop - piece.start) * self._params[piece.item][0].element_size()

    def _item(self, param: torch.Tensor) -> Item:
        state = self._optimizer.state.get(param, {})
        tensors = [plain for v in state.values() if isinstance(v, torch.Tensor) for plain in plain_tensors(v)]
        nbytes = sum(t.numel() * t.element_size() for t in [param, param.grad, *tensors] if t is not None)
        flat = all(t.is_contiguous() for t in [param, param.grad, *tensors] if t is not None)
        sliceable = can_slice(self._optimizer) and flat and param.grad is not None and param.grad.shape == param.shape
        return Item(param.numel(), nbytes / max(1, param.numel()), sliceable)

    def _make_state(self) -> bool:
        """State for parameters that have none. A tiny parameter is stepped to see what the state looks like."""
        state = self._optimizer.state
        missing = [(param, number) for param, number in self._params if not state.get(param)]
        if missing and type(self._optimizer) is torch.optim.Adafactor:
            for group in self._optimizer.param_groups:
                self._optimizer._init_group(group, [], [], [], [], [], [])
            return True
        if missing and not can_slice(self._optimizer):
            return False
        looks = {number: self._look(number) for number in {number for _, number in missing}}
        self._new = set()
        for param, number in missing:
            if looks[number]:
                self._new.add(param)
            for name, value in looks[number].items():
                full = isinstance(value, torch.Tensor) and value.ndim == 1
                state[param][name] = torch.zeros_like(param, requires_grad=False, dtype=value.dtype) if full else value
        return True

    def _look(self, number: int) -> dict[str, Any]:
        """The state that this optimizer makes for a parameter of one element in this group."""
        group, groups = self._optimizer.param_groups[number], self._optimizer.param_groups
        like = next(p for p in group["params"] if p.grad is not None)
        tiny = torch.zeros(1, dtype=like.dtype, device=like.device)
        tiny.grad = torch.zeros_like(tiny)
        try:
            self._optimizer.param_groups = [dict(group, params=[tiny])]
            type(self._optimizer).step(self._optimizer)
            return dict(self._optimizer.state.get(tiny, {}))
        finally:
            self._optimizer.param_groups = groups
            self._optimizer.state.pop(tiny, None)


class _StandIn:
    """A parameter as a unit shows it to the optimizer: itself, or a slice with views of its state."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, param: torch.Tensor, piece: Slice, new: set[torch.Tensor]
    ) -> None:
        self._optimizer, self._owner, self._new = optimizer, param, param in new
        self._last = piece.stop == param.numel()
        self._cut = slice(piece.start, piece.stop)
        self.param = param
        if not self._new and piece.stop - piece.start == param.numel():
            return
        assert param.grad is not None
        self.param = param.detach().view(-1)[self._cut]
        self.param.grad = param.grad.view(-1)[self._cut]
        # A new parameter's state has its place already, but the optimizer makes its first values.
        if not self._new:
            optimizer.state[self.param] = {name: self._view(v) for name, v in optimizer.state[param].items()}

    def settle(self) -> None:
        """Bring home what is not a view: first values, and once per parameter the counters."""
        if self.param is self._owner:
            return
        home = self._optimizer.state[self._owner]
        for name, value in self._optimizer.state[self.param].items():
            if isinstance(value, torch.Tensor) and value.ndim == 1:
                place = home[name].view(-1)[self._cut]
                if place.data_ptr() != value.data_ptr():
                    place.copy_(value)
            elif self._last:
                home[name] = value

    def leave(self) -> None:
        """The optimizer forgets the stand-in."""
        if self.param is not self._owner:
            self._optimizer.state.pop(self.param, None)

    def _view(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.view(-1)[self._cut] if value.shape == self._owner.shape else value.clone()

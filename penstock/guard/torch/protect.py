"""An optimizer step that is taken whole or not at all, in little memory.

Covers: choosing the form of the step, reserving what it needs, taking it, putting it back.
Does not cover: fused kernels (fused.py), single units (step_units.py).

Three forms. *Fused*: nothing to tear. *Units*: torch's own optimizers treat parameters apart from each other, most of
them even elements; so the step is taken in units of a few megabytes, each of which can be undone, to its end. *Whole*:
of an optimizer that is not known (it may look at all gradients at once) everything is copied, to memory where there is
plenty of it and to a file where there is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim import optimizer as torch_optimizer

from penstock.core.events import events
from penstock.guard.recovery.undo.roll_forward import roll_forward
from penstock.guard.torch import fused
from penstock.guard.torch.state import Copies, WholeCopy, plain_tensors
from penstock.guard.torch.step_units import StepUnits, in_pieces

Form = Literal["fused", "units", "whole"]


class ProtectedStep:
    """One optimizer's steps. `prepare` may fail and changes nothing; `take` ends whole, or `undo` puts it back."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, scaled: bool = False) -> None:
        self.optimizer, self._scaled = optimizer, scaled
        self.form: Form = "whole"
        self._units = StepUnits(optimizer)
        self._counters, self._whole = Copies(), WholeCopy(type(optimizer).__name__)
        self._scalars: list[tuple[dict[str, Any], str, Any]] = []
        self._counted = False
        self._had_state: list[torch.Tensor] = []
        self._saved = False
        self._stepped: tuple[int, int] | None = None
        self._told: set[str] = set()

    @property
    def nbytes(self) -> int:
        """Memory that the protection holds."""
        return self._units.nbytes + self._whole.nbytes

    def ready(self) -> bool:
        """Whether the next step is a fused one, for whose parameters the last step has left state and copies."""
        return self._stepped == self._scope() and _as_made(self.optimizer)

    def _scope(self) -> tuple[int, int]:
        """How many parameters have a gradient, and how many have state."""
        groups = self.optimizer.param_groups
        return sum(p.grad is not None for group in groups for p in group["params"]), len(self.optimizer.state)

    def reserve(self) -> None:
        """Make missing state and reserve as `prepare` does, to know early whether it can; `prepare` does it again.

        Not where that copies everything.
        """
        if self._choose() != "whole":
            self.prepare()

    def prepare(self) -> None:
        """Make missing state, and reserve all that the step needs. Whatever fails here has changed nothing."""
        self.undo()  # what `reserve` made; there may be more gradients now
        self._had_state = [param for param, state in self.optimizer.state.items() if state]
        self.forget()
        self._saved = True
        self.form = self._choose()
        if self.form == "fused" and not fused.make_state(self.optimizer):
            self.form = "units"
        if self.form == "units" and not self._units.prepare():
            self.form = "whole"
        if self.form != "units":
            self._copy()

    def take(self, step: Callable[[], Any]) -> None:
        """Step. `step` calls `optimizer.step()`, perhaps by way of a gradient scaler."""
        if self.form != "units":
            self._stepped = None
            step()
            self._stepped = self._scope() if self.form == "fused" else None
            return
        own = vars(self.optimizer).get("step")
        bound = self.optimizer.step

        def in_units(*_: Any, **__: Any) -> None:
            _put(self.optimizer, own)
            roll_forward(self._units.units, self._units.using(bound), who=type(self.optimizer).__name__)
            self.forget()  # it ended whole, so there is no way back, and none is needed

        vars(self.optimizer)["step"] = in_units
        try:
            step()
        finally:
            _put(self.optimizer, own)

    def undo(self) -> None:
        """Put back what a failed step changed; state that it began to make is removed."""
        if not self._saved:
            return
        had_state = set(self._had_state)
        for param in [param for param in self.optimizer.state if param not in had_state]:
            del self.optimizer.state[param]
        for state, name, value in self._scalars:
            state[name] = value
        self._whole.restore()
        if self._counted:
            self._counters.restore()
        self.forget()

    def forget(self) -> None:
        """The step was good: there is nothing to put back any more."""
        self._saved, self._counted, self._scalars = False, False, []
        self._whole.forget()

    def lean(self) -> bool:
        """Hold copies in a file from now on; True if that frees memory."""
        return self._whole.lean()

    def _choose(self) -> Form:
        optimizer = self.optimizer
        if not _as_made(optimizer) or not in_pieces(optimizer) or self._sparse():
            return "whole"
        if fused.is_fused(optimizer):
            return "fused"
        # A scaler hands its scale to fused kernels in a way of its own: those stay as the user made them.
        if not self._scaled and fused.can_fuse(optimizer):
            fused.fuse(optimizer)
            self._tell("guard.fused", why="torch's fused kernel allocates nothing: equal mathematics, no copies")
            return "fused"
        # A slice of a parameter that is divided over ranks would be one of all its elements, also those elsewhere.
        return "whole" if _divided(optimizer) else "units"

    def _sparse(self) -> bool:
        return any(p.grad is not None and p.grad.is_sparse for g in self.optimizer.param_groups for p in g["params"])

    def _copy(self) -> None:
        """Copy what the step may change: of fused kernels the counters, else everything."""
        tensors: list[torch.Tensor] = []
        whole = self.form == "whole"
        for group in self.optimizer.param_groups:
            for param in fused.with_gradients(group):
                tensors += plain_tensors(param) if whole else []
                for name, value in self.optimizer.state.get(param, {}).items():
                    if not isinstance(value, torch.Tensor):
                        self._scalars.append((self.optimizer.state[param], name, value))
                    elif whole or value.numel() <= 1:
                        tensors += plain_tensors(value)
        if whole:
            self._whole.save(tensors)
        else:
            self._counters.save(tensors)
            self._counted = True

    def _tell(self, kind: str, **values: Any) -> None:
        if kind not in self._told:
            self._told.add(kind)
            events.emit(kind, type(self.optimizer).__name__, **values)


def _as_made(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` is the class's own, at most wrapped by a scheduler, and nothing hangs on it."""
    own = vars(optimizer).get("step")
    wrapped = own is not None and not getattr(own, "_wrapped_by_lr_sched", False)
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    return not wrapped and not any(hooks)


def _divided(optimizer: torch.optim.Optimizer) -> bool:
    return any(hasattr(p, "device_mesh") for group in optimizer.param_groups for p in group["params"])


def _put(optimizer: torch.optim.Optimizer, own: Any) -> None:
    """Give the instance back the `step` that it had of its own, or none."""
    if own is None:
        vars(optimizer).pop("step", None)
    else:
        vars(optimizer)["step"] = own

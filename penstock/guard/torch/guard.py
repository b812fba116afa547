"""A guard for one's own PyTorch loop.

Covers: `Guard`: `loss = guard.step(batch, loss_fn)` in place of zero_grad, backward and step.
Does not cover: Keras models (guard/fit.py).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidInput, MissingExtra
from penstock.guard.ranks.agree import find_ranks
from penstock.guard.ranks.in_step import InStep, Uneven
from penstock.guard.recovery.ladder import Allowed, Ladder, Line
from penstock.guard.recovery.step import Control

if TYPE_CHECKING:
    import torch


class Guard:
    """Takes real batches through a torch model in micro-batches that fit, with the mathematics of the whole batch.

    `loss_fn` is a loss of torch (`nn.CrossEntropyLoss()`, called with `model(x)` and `y`) or a function
    `loss_fn(model, batch)` that returns the mean over the batch's samples.

    >>> guard = Guard(model, torch.optim.AdamW(model.parameters()))  # doctest: +SKIP
    >>> for batch in ds.torch():  # doctest: +SKIP
    ...     loss = guard.step(batch, torch.nn.CrossEntropyLoss())
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        micro_batch: int | None = None,
        precision: str = "float32",
        remat: bool | str = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        before_apply: Callable[[list[torch.nn.Parameter]], None] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        try:
            from penstock.guard.torch.parts import TorchOptions
            from penstock.guard.torch.sharded import make_stepper
        except ImportError as error:
            raise MissingExtra(what="Guard", extra="torch") from error
        if remat not in (True, False, "auto"):
            raise InvalidInput(f"remat must be True, False or 'auto', not {remat!r}.")
        options = TorchOptions(
            precision="float32" if precision == "auto" else precision,
            clip_norm=clip_norm,
            clip_value=clip_value,
            before_apply=before_apply,
            scaler=scaler,
            device=device,
        )
        self._stepper = make_stepper(model, optimizer, options)
        self._control = Control(
            who=type(model).__name__,
            allowed=Allowed(precision=precision == "auto", remat=remat == "auto"),
            ranks=find_ranks("torch"),
            first_micro=micro_batch,
        )
        self._stepper.begin_together(self._control.ranks)
        self._model = model
        self._warned = False
        if remat is True:
            self._stepper.rematerialise()

    def step(
        self,
        batch: Any,
        loss_fn: Callable[..., torch.Tensor],
        *,
        weight: Callable[[Any], float] | None = None,
    ) -> torch.Tensor:
        """One optimizer step on one real batch; returns its loss, detached.

        `weight(part)` counts what the loss averages over where that is not samples, such as tokens.
        """
        self._stepper.loss_fn, self._stepper.weigh = loss_fn, weight
        parts = self._control.run(self._stepper, batch)
        if parts > 1 and not self._warned:
            self._warned = True
            warn_batch_dependent(batch_norms(self._model))
        return self._stepper.loss

    def epoch(self, ds: Iterable[Any], *, uneven: Uneven = "pad") -> Iterator[Any]:
        """The batches of one pass over `ds`, as many on every rank: `for batch in guard.epoch(ds): guard.step(...)`.

        A rank whose data ends early takes part with no rows (`"pad"`), or all stop with it (`"drop"`). In a process
        alone these are the batches of `ds`.
        """
        return InStep(iter(ds), self._control.ranks, uneven)

    @property
    def micro_batch(self) -> int | None:
        """The largest part a batch is cut into now; None before the first step."""
        return None if self._control.ladder is None else self._control.ladder.micro

    def state_dict(self) -> dict[str, Any]:
        """What the guard has learned, as JSON-able values."""
        return {"ladder": None if self._control.ladder is None else dataclasses.asdict(self._control.ladder)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learned before."""
        self._control.ladder = ladder_from(state["ladder"])


def ladder_from(state: dict[str, Any] | None) -> Ladder | None:
    """The inverse of `dataclasses.asdict` for a ladder."""
    if state is None:
        return None
    line = state.get("line")
    return Ladder(**{**state, "line": None if line is None else Line(**line)})


def batch_norms(model: torch.nn.Module) -> list[str]:
    """Names of layers that look at the whole batch and are in training mode."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm) and layer.training]


def warn_batch_dependent(names: list[str]) -> None:
    """Say once that a layer's statistics are those of the parts, not of the whole batch."""
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warnings.warn(
            f"Batches are now split, and {shown} normalise over the batch: their statistics are those of the "
            f"micro-batches. Freeze them, or use group or layer normalisation, for the mathematics of the whole batch.",
            stacklevel=3,
        )

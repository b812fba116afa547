"""A guard for one's own JAX loop with Optax.

Covers: `JaxGuard`: `loss = guard.step(batch)` in place of value_and_grad, update and apply_updates.
Does not cover: PyTorch loops (guard/torch/guard.py), Keras models (guard/fit.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.core.errors import MissingExtra
from penstock.guard.ranks.agree import find_ranks
from penstock.guard.ranks.in_step import InStep, Uneven
from penstock.guard.recovery.ladder import Allowed
from penstock.guard.recovery.step import Control
from penstock.guard.torch.guard import ladder_from


class JaxGuard:
    """Takes real batches through a JAX loss in micro-batches that fit, with the mathematics of the whole batch.

    `loss_fn(params, batch)` returns the mean over the batch's samples; with `key=` in `step` it is called as
    `loss_fn(params, batch, key)`. `params` and `opt_state` are those after the last whole step.

    >>> guard = JaxGuard(loss_fn, optax.adamw(1e-3), params)  # doctest: +SKIP
    >>> for batch in ds:  # doctest: +SKIP
    ...     loss = guard.step(batch)
    """

    def __init__(
        self,
        loss_fn: Callable[..., Any],
        optimizer: Any,
        params: Any,
        *,
        micro_batch: int | None = None,
        precision: str = "float32",
    ) -> None:
        try:
            from penstock.guard.jax.parts import JaxStepper
        except ImportError as error:
            raise MissingExtra(what="JaxGuard", extra="jax") from error
        self._stepper = JaxStepper(loss_fn, optimizer, params, "float32" if precision == "auto" else precision)
        name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        self._control = Control(
            who=name,
            allowed=Allowed(precision=precision == "auto"),
            first_micro=micro_batch,
            ranks=find_ranks("jax"),
        )

    def step(self, batch: Any, *, key: Any = None, weight: Callable[[Any], float] | None = None) -> Any:
        """One update on one real batch; returns its loss.

        `weight(part)` counts what the loss averages over where that is not samples, such as tokens.
        """
        self._stepper.key, self._stepper.weigh = key, weight
        self._control.run(self._stepper, batch)
        return self._stepper.loss

    def epoch(self, ds: Iterable[Any], *, uneven: Uneven = "pad") -> Iterator[Any]:
        """The batches of one pass over `ds`, as many on every rank; see `Guard.epoch`."""
        return InStep(iter(ds), self._control.ranks, uneven)

    @property
    def params(self) -> Any:
        """The parameters after the last whole step."""
        self._stepper.lent = True
        return self._stepper.params

    @property
    def opt_state(self) -> Any:
        """The optimizer's state after the last whole step."""
        self._stepper.lent_state = True
        return self._stepper.state

    @property
    def micro_batch(self) -> int | None:
        """The largest part a batch is cut into now; None before the first step."""
        return None if self._control.ladder is None else self._control.ladder.micro

    def restore(self, params: Any, opt_state: Any) -> None:
        """Go on from other parameters and state, such as those of a checkpoint."""
        self._stepper.params, self._stepper.state = params, opt_state
        self._stepper.lent = self._stepper.lent_state = True

    def state_dict(self) -> dict[str, Any]:
        """What the guard has learned, as JSON-able values."""
        return {"ladder": None if self._control.ladder is None else dataclasses.asdict(self._control.ladder)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learned before."""
        self._control.ladder = ladder_from(state["ladder"])

"""A JAX step in parts.

Covers: gradients of one part as a compiled function of values, their sum, one update by an Optax optimizer.
Does not cover: sizes and retries (guard/step.py), Keras on JAX (guard/frameworks/keras_jax.py).

Nothing of the user's is donated: after a failed allocation donated buffers are gone, and the error may come to light
only when a result is read. So results are waited for before they count, and new parameters stand complete beside the
old ones until they replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.microbatch import Part
from penstock.guard.recover import Phase

PRECISIONS = ("float32", "mixed_bfloat16")


class JaxStepper:
    """Steps with a loss function and an Optax optimizer. `params` and `state` are those of the last whole step."""

    def __init__(self, loss_fn: Callable[..., Any], optimizer: Any, params: Any, precision: str) -> None:
        if not callable(loss_fn):
            raise InvalidInput(f"loss_fn must be a function loss_fn(params, batch), not a {type(loss_fn).__name__}.")
        if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
            raise InvalidInput(
                f"The optimizer must be an optax.GradientTransformation, not {type(optimizer).__name__}."
            )
        if precision not in PRECISIONS:
            raise InvalidInput(
                f"precision must be one of {', '.join(map(repr, [*PRECISIONS, 'auto']))}, not {precision!r}."
            )
        self.loss_fn, self.optimizer = loss_fn, optimizer
        self.params, self.state = params, _finished(optimizer.init(params))
        self.phase: Phase = "forward"
        self.key: Any = None
        self.weigh: Callable[[Any], float] | None = None
        self.loss: Any = None
        self._low = precision == "mixed_bfloat16"
        self._sums: Any = None
        self._shares: dict[int, float] = {}
        self._make_functions()

    def begin(self, parts: Sequence[Part]) -> None:
        """Forget the sums and find each part's share."""
        self.phase, self._sums = "forward", None
        if self.weigh is None or len(parts) == 1:
            self._shares = {part.start: part.share for part in parts}
            return
        counts = {part.start: float(self.weigh(part.data)) for part in parts}
        total = sum(counts.values())
        self._shares = {start: count / total if total else 0.0 for start, count in counts.items()}

    def part(self, part: Part) -> None:
        """Add one part's weighted loss and gradients."""
        self.phase = "backward"
        # A part's random numbers depend on where it begins, so that a retry of the same split draws the same ones.
        key = () if self.key is None else (jax.random.fold_in(self.key, part.start),)
        found = self._gradients(self.params, np.float32(self._shares[part.start]), part.data, *key)
        sums, self._sums = self._sums, None  # donated: whatever happens now, the old sums are gone
        self._sums = _finished(found if sums is None else self._add(sums, found))

    def apply(self) -> None:
        """One update for the whole batch."""
        self.phase = "apply"
        loss, gradients = self._sums
        params, state = _finished(self._apply(self.params, self.state, gradients))
        self.params, self.state, self.loss, self._sums = params, state, loss, None

    def drop(self) -> None:
        """Forget the sums; nothing else was touched."""
        self._sums = None

    def free(self) -> None:
        """XLA frees buffers when their arrays go."""

    def lower_precision(self) -> None:
        """Compute in bfloat16 from now on; parameters stay as they are."""
        self._low = True
        self._make_functions()

    def rematerialise(self) -> bool | None:
        """Never asked: recomputing a whole loss saves nothing; jax.checkpoint belongs around its blocks."""
        raise InvalidInput("JaxGuard cannot see the blocks of loss_fn. Wrap them in jax.checkpoint.")

    def _make_functions(self) -> None:
        def weighted(params: Any, share: Any, batch: Any, *key: Any) -> Any:
            if self._low:
                params, batch = jax.tree.map(_halved, (params, batch))
            loss = self.loss_fn(params, batch, *key)
            if jnp.shape(loss) != ():
                raise InvalidInput(f"loss_fn returned shape {jnp.shape(loss)}; it must be one number, a mean.")
            return loss.astype(jnp.float32) * share

        def apply(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = self.optimizer.update(gradients, state, params)
            return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state

        self._gradients = jax.jit(jax.value_and_grad(weighted))
        self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=(0,))
        self._apply = jax.jit(apply)


def _halved(leaf: Any) -> Any:
    return leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf


def _finished(values: Any) -> Any:
    """Wait for a computation: an error of an asynchronous one appears where its result is waited for."""
    return jax.block_until_ready(values)  # type: ignore[no-untyped-call]

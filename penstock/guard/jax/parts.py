"""A JAX step in parts.

Covers: gradients of one part as a compiled function of values, their sum, one update by an Optax optimizer.
Does not cover: sizes and retries (guard/recovery/step.py), Keras on JAX (guard/keras/backends/jax.py).

Nothing that the user may hold is donated: after a failed allocation donated buffers are gone, and the error may come to
light only when a result is read. So results are waited for before they count, and new parameters stand complete beside
the old ones until they replace them. Where there is no room for both, the old ones are written to a file first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.core.errors import InvalidInput
from penstock.guard.jax.undo import DonatedUndo, can_donate, share_memory
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.ladder import Phase
from penstock.guard.recovery.microbatch import Part

PRECISIONS = ("float32", "mixed_bfloat16")


class JaxStepper:
    """Steps with a loss function and an Optax optimizer. `params` and `state` are those of the last whole step."""

    measurable = False
    """Each size is compiled, which takes longer than a look at it saves."""
    sure, waits_inside = False, False
    """New parameters are made beside the old ones."""

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
        self.weight: float | None = 1.0
        self._low = precision == "mixed_bfloat16"
        self.lent, self.lent_state = True, False
        """Someone else may hold the arrays of `params`, of `state`: the next update must leave them as they are."""
        self._undo: DonatedUndo | None = None
        self._given: tuple[Any, ...] = ()
        self._sums: Any = None
        self._shares: dict[int, float] = {}
        self._make_functions()

    def begin(self, parts: Sequence[Part]) -> None:
        """Forget the sums and find each part's share."""
        self.phase, self._sums = "forward", None
        self.weight = float(sum(part.rows if self.weigh is None else self.weigh(part.data) for part in parts))
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

    def prepare(self) -> None:
        """New values stand beside the old ones; where memory is short, the old ones are in a file instead."""
        self.phase = "apply"
        given = self._may_give()
        if given and self._undo is not None:
            self._undo.save(jax.tree.leaves(given))
        self._given = given

    def _may_give(self) -> tuple[Any, ...]:
        """What the update may write over: all, the state alone while others may hold the parameters, or nothing."""
        if self._undo is None or self.lent_state:
            return ()
        given = (self.state,) if self.lent else (self.params, self.state)
        if not can_donate(jax.tree.leaves((self.params, self.state))):
            return ()
        return () if self.lent and share_memory(self.params, self.state) else given

    def apply(self) -> None:
        """One update for the whole batch."""
        self.phase = "apply"
        loss, gradients = self._sums
        update = (self._apply, self._apply_state_given, self._apply_given)[len(self._given)]
        params, state = _finished(update(self.params, self.state, gradients))
        self._given, self.lent, self.lent_state = (), False, False
        self.params, self.state, self.loss, self._sums = params, state, loss, None

    def combine(self, ranks: Ranks, share: float) -> None:
        """Loss and gradients of all ranks; a rank without rows has none yet."""
        sums = self._sums if self._sums is not None else (jnp.zeros(()), jax.tree.map(jnp.zeros_like, self.params))
        leaves, tree = jax.tree.flatten(sums)
        self._sums = _finished(jax.tree.unflatten(tree, ranks.add(leaves, share)))

    def drop(self) -> None:
        """Forget the sums. Nothing else was touched, unless it was given to a step that failed."""
        self._sums = None
        if self._given and self._undo is not None:
            leaves, tree = jax.tree.flatten(self._given)
            *params, self.state = jax.tree.unflatten(tree, self._undo.load(leaves))
            self.params = params[0] if params else self.params
            self._given = ()

    def lean(self) -> bool:
        """Give parameters and state to the update from now on, with the old values in a file."""
        if self._undo is not None:
            return False
        self._undo = DonatedUndo()
        return True

    def holds(self) -> dict[str, int]:
        """Bytes by owner."""
        params, state = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (self.params, self.state))
        return {"parameters": params, "gradients": params, "optimizer state": state, "guard": 0}

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
        self._apply_given = jax.jit(apply, donate_argnums=(0, 1))
        self._apply_state_given = jax.jit(apply, donate_argnums=(1,))


def _halved(leaf: Any) -> Any:
    return leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf


def _finished(values: Any) -> Any:
    """Wait for a computation: an error of an asynchronous one appears where its result is waited for."""
    return jax.block_until_ready(values)  # type: ignore[no-untyped-call]

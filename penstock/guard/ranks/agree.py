"""What several ranks of one training decide together.

Covers: the questions that ranks ask each other, and a job of one process.
Does not cover: how an engine carries them (torch.py, jax.py), which rank this is (core/world.py).

Every call here is a collective: all ranks make it, at the same place. That place is never inside of a computation that
may run out of memory on one rank alone, because the others would wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.core.world import WorldError, check_together, joined_size


class Ranks(Protocol):
    """Several processes that must take the same decision."""

    rank: int
    size: int
    waited_s: float
    """Seconds that this rank has waited for the others."""

    def totals(self, *values: float) -> tuple[float, ...]:
        """The sum over all ranks of each value."""

    def any(self, flag: bool) -> bool:
        """True everywhere if it is True anywhere."""

    def smallest(self, value: int) -> int:
        """The smallest of all ranks' values."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, which JSON can write, in the order of ranks."""

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        """The sum over ranks of each framework array times its rank's share; may reuse the arrays."""

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        """Rank 0's framework arrays; may write into the arrays."""


class OneRank:
    """A job of a single process."""

    rank, size, waited_s = 0, 1, 0.0

    def totals(self, *values: float) -> tuple[float, ...]:
        return values

    def any(self, flag: bool) -> bool:
        return flag

    def smallest(self, value: int) -> int:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def add(self, arrays: Sequence[Any], share: float) -> list[Any]:
        return list(arrays)

    def from_first(self, arrays: Sequence[Any]) -> list[Any]:
        return list(arrays)


def find_ranks(backend: str) -> Ranks:
    """How this process talks to its fellows, on the framework that computes; refuses ranks that nothing joins."""
    world = check_together()
    if world.size == 1:
        return OneRank()
    if backend in ("torch", "jax") and joined_size(backend) != world.size:
        raise WorldError(
            f"This is {world}, but {backend}, on which the model runs, is not joined with the others: they would train "
            f"{world.size} separate models. Call penstock.distribute.join.join({backend!r}) before the first tensor is "
            f"made."
        )
    if backend == "torch":
        from penstock.guard.ranks.timed import TimedRanks
        from penstock.guard.ranks.torch import TorchRanks

        return TimedRanks(TorchRanks())
    if backend == "jax":
        from penstock.guard.ranks.jax import JaxRanks
        from penstock.guard.ranks.timed import TimedRanks

        return TimedRanks(JaxRanks())
    raise WorldError(
        f"This is {world}, and the model runs on {backend}. Training across processes works with the torch and jax "
        f"backends (KERAS_BACKEND=torch); on one machine, MirroredStrategy works with model.fit(ds.keras())."
    )

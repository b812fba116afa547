"""As many batches on every rank.

Covers: ranks whose data ends at different times, or fails; wishes that must be granted together.
Does not cover: dividing the data (plan/ranks.py), what is done with a batch.

Filters, skipped records and units of different size give ranks different numbers of batches. A rank that steps alone
would wait for ever in its next sum. So ranks vote before each batch: one small sum, a fraction of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.core.world import WorldError
from penstock.guard.ranks.agree import Ranks

Uneven = Literal["pad", "drop"]
"""Which batches count where ranks have different numbers of them: "pad": all do, ranks that have none left take part
with no rows; "drop": only those that every rank has."""


class NoRows:
    """Stands for a batch on a rank whose data has ended before the others'."""

    def __repr__(self) -> str:
        return "no rows"


NO_ROWS = NoRows()


class InStep(Iterator[Any]):
    """One rank's batches, as many as every other rank gets.

    `wishes()` is asked before each batch and returns flags, such as "save now"; `granted` has those that any rank has.
    """

    def __init__(
        self, batches: Iterator[Any], ranks: Ranks, uneven: Uneven, wishes: Callable[[], tuple[bool, ...]] = tuple
    ) -> None:
        if uneven not in ("pad", "drop"):
            raise InvalidInput(f"uneven must be 'pad' or 'drop', not {uneven!r}.")
        self._batches, self._ranks, self._uneven, self._wishes = batches, ranks, uneven, wishes
        self._steps = self._padded = 0
        self.granted: tuple[bool, ...] = ()

    def __next__(self) -> Any:
        batch, error = self._pull()
        has = batch is not None
        here, failed, *wishes = self._ranks.totals(has, error is not None, *map(float, self._wishes()))
        self.granted = tuple(wish > 0 for wish in wishes)
        if error is not None:
            raise error
        if failed:
            raise WorldError(f"Another rank could not read its data at step {self._steps}; its message says why.")
        if here == 0 or (self._uneven == "drop" and here < self._ranks.size):
            self._tell(dropped=int(has))
            raise StopIteration
        self._steps += 1
        self._padded += not has
        return batch if has else NO_ROWS

    def _pull(self) -> tuple[Any, BaseException | None]:
        try:
            return next(self._batches, None), None
        except Exception as error:  # told to all ranks first, raised by the caller then
            return None, error

    def _tell(self, dropped: int) -> None:
        if dropped or self._padded:
            events.emit(
                "ranks.uneven", f"rank {self._ranks.rank}", steps=self._steps, padded=self._padded, dropped=dropped
            )
